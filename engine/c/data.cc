// The data that a program gives, as a DataSource.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/api/data_source.h"
#include "engine/c/calls.h"
#include "engine/files/data/sample_parts.h"
#include "kernels/check.h"

namespace shale::c {
namespace {

constexpr size_t kMostStateBytes = size_t{1} << 20;
constexpr int64_t kMostValues = int64_t{1} << 40;  // Of one sample.

// Returns the parts of a sample as a program in C sees them. Those that the sample does not have are null.
shale_sample SampleOf(const SampleParts& parts, int64_t sequence_length) {
  const auto part = [](auto span) { return span.empty() ? nullptr : span.data(); };
  return {sizeof(shale_sample), sequence_length,           part(parts.inputs),  part(parts.features),
          part(parts.targets),  part(parts.target_values), part(parts.weights), part(parts.position_ids)};
}

// A source whose samples can be read in any order.
class FunctionSource : public DataSource {
 public:
  FunctionSource(DataDescription description, const shale_data& data)
      : DataSource(std::move(description)), data_(data) {}

  absl::Status Read(int64_t sample, const SampleParts& out) override {
    const shale_sample parts = SampleOf(out, description().sequence_length);
    shale_error error = SHALE_INIT(shale_error);
    return StatusOf(data_.read(data_.user, sample, &parts, &error), error, "data.read");
  }

 private:
  const shale_data data_;
};

PullCallbacks Callbacks(const DataDescription& description, const shale_data& data) {
  PullCallbacks callbacks;
  callbacks.next = [description, data, sample = int64_t{0}](PulledSample& out) mutable -> absl::StatusOr<bool> {
    Resize(out, description, description.sequence_length);
    const shale_sample parts = SampleOf(PartsOf(out), description.sequence_length);
    shale_error error = SHALE_INIT(shale_error);
    const shale_code code = data.read(data.user, sample++, &parts, &error);
    if (code == SHALE_OUT_OF_RANGE) return false;
    SHALE_RETURN_IF_ERROR(StatusOf(code, error, "data.read"));
    return true;
  };
  if (data.save != nullptr) {
    callbacks.save = [data]() -> absl::StatusOr<std::string> {
      std::string state(kMostStateBytes, '\0');
      size_t used = 0;
      shale_error error = SHALE_INIT(shale_error);
      SHALE_RETURN_IF_ERROR(
          StatusOf(data.save(data.user, state.data(), state.size(), &used, &error), error, "data.save"));
      if (used > state.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("data.save: wrote ", used, " bytes; a state has at most ", state.size()));
      }
      state.resize(used);
      return state;
    };
  }
  if (data.restore != nullptr) {
    callbacks.restore = [data](const std::string& state) {
      shale_error error = SHALE_INIT(shale_error);
      return StatusOf(data.restore(data.user, state.data(), state.size(), &error), error, "data.restore");
    };
  }
  return callbacks;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DataSource>> MakeDataSource(const shale_data* data, absl::string_view name) {
  SHALE_ASSIGN_OR_RETURN(const shale_data taken, TakeStruct(data, name));
  SHALE_RETURN_IF_ERROR(Require(taken.name, absl::StrCat(name, "->name")));
  if (taken.read == nullptr) return absl::InvalidArgumentError(absl::StrCat(name, "->read is NULL"));
  SHALE_RETURN_IF_ERROR(CheckRange(name, "samples", taken.samples, 0, kEndlessSamples));
  SHALE_RETURN_IF_ERROR(CheckRange(name, "sequence_length", taken.sequence_length, 1, int64_t{1} << 31));
  SHALE_RETURN_IF_ERROR(CheckRange(name, "vocabulary", taken.vocabulary, 0, int64_t{1} << 31));
  SHALE_RETURN_IF_ERROR(CheckRange(name, "features", taken.features, 0, kMostValues / taken.sequence_length));
  SHALE_RETURN_IF_ERROR(CheckRange(name, "target_values", taken.target_values, 0, kMostValues / taken.sequence_length));
  const DataDescription description = {.name = taken.name,
                                       .samples = taken.samples == 0 ? kEndlessSamples : taken.samples,
                                       .sequence_length = taken.sequence_length,
                                       .vocabulary = taken.vocabulary,
                                       .features = taken.features,
                                       .target_values = taken.target_values,
                                       .has_weights = taken.has_weights != 0,
                                       .has_position_ids = taken.has_position_ids != 0};
  std::unique_ptr<DataSource> source;
  if (taken.in_order != 0) {
    source = std::make_unique<PullSource>(description, Callbacks(description, taken));
  } else {
    source = std::make_unique<FunctionSource>(description, taken);
  }
  return source;
}

}  // namespace shale::c
