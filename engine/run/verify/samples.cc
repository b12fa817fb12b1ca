#include "engine/run/verify/samples.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "kernels/check.h"

namespace shale {
namespace {

template <class T>
std::string FirstDifference(absl::string_view what, const std::vector<T>& once, const std::vector<T>& again) {
  for (size_t i = 0; i < once.size(); ++i) {
    if (once[i] == again[i]) continue;
    return absl::StrCat(what, " ", i, " of the sample was ", once[i], " when it was read first, and ", again[i],
                        " when it was read again");
  }
  return "";
}

std::string FirstDifference(const RecordedSample& once, const RecordedSample& again) {
  for (const std::string& text :
       {FirstDifference("input", once.inputs, again.inputs), FirstDifference("feature", once.features, again.features),
        FirstDifference("target", once.targets, again.targets),
        FirstDifference("target value", once.target_values, again.target_values),
        FirstDifference("weight", once.weights, again.weights),
        FirstDifference("position id", once.position_ids, again.position_ids)}) {
    if (!text.empty()) return text;
  }
  return "";
}

}  // namespace

absl::StatusOr<std::vector<RecordedSample>> ReadSamples(const BatchLoader& loader, ReadOrder order) {
  const DataDescription& data = loader.source().description();
  const int64_t count = loader.shape().global_batch, S = loader.shape().sequence_length;
  SHALE_CHECK(loader.shape().ranks == 1 && loader.shape().micro_batch == 1) << "a loader of another shape";
  RecordedSample empty;
  empty.inputs.resize(data.features > 0 ? 0 : S);
  empty.features.resize(S * data.features);
  empty.targets.resize(data.target_values > 0 ? 0 : S);
  empty.target_values.resize(S * data.target_values);
  empty.weights.resize(loader.has_weights() ? S : 0);
  empty.position_ids.resize(data.has_position_ids ? S : 0);
  std::vector<RecordedSample> samples(count, empty);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t position = order == ReadOrder::kForward ? i : count - 1 - i;
    RecordedSample& sample = samples[position];
    SHALE_RETURN_IF_ERROR(loader
                              .Fill({.begin = 0, .count = count}, /*rank=*/0, position,
                                    {.inputs = absl::MakeSpan(sample.inputs),
                                     .features = absl::MakeSpan(sample.features),
                                     .targets = absl::MakeSpan(sample.targets),
                                     .target_values = absl::MakeSpan(sample.target_values),
                                     .weights = absl::MakeSpan(sample.weights),
                                     .position_ids = absl::MakeSpan(sample.position_ids)})
                              .status());
  }
  return samples;
}

std::string FirstDifference(const std::vector<RecordedSample>& once, const std::vector<RecordedSample>& again) {
  for (size_t position = 0; position < once.size(); ++position) {
    const std::string text = FirstDifference(once[position], again[position]);
    if (!text.empty()) return absl::StrCat("position ", position, " of the data: ", text);
  }
  return "";
}

absl::Status RecordedSource::Read(int64_t sample, const SampleParts& out) {
  const RecordedSample& recorded = recorded_.samples[sample];
  std::copy(recorded.inputs.begin(), recorded.inputs.end(), out.inputs.begin());
  std::copy(recorded.features.begin(), recorded.features.end(), out.features.begin());
  std::copy(recorded.targets.begin(), recorded.targets.end(), out.targets.begin());
  std::copy(recorded.target_values.begin(), recorded.target_values.end(), out.target_values.begin());
  std::copy_n(recorded.weights.begin(), out.weights.size(), out.weights.begin());
  std::copy(recorded.position_ids.begin(), recorded.position_ids.end(), out.position_ids.begin());
  if (edit_) edit_(sample, out);
  return absl::OkStatus();
}

}  // namespace shale
