#include "engine/run/verify/samples.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/files/data/sample_parts.h"
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
  std::string text;
  ForEachPart([&](const auto& part) {
    if (text.empty()) text = FirstDifference(part.element, once.*part.vector, again.*part.vector);
  });
  return text;
}

}  // namespace

absl::StatusOr<std::vector<RecordedSample>> ReadSamples(const BatchLoader& loader, ReadOrder order) {
  const int64_t count = loader.shape().global_batch;
  SHALE_CHECK(loader.shape().ranks == 1 && loader.shape().micro_batch == 1) << "a loader of another shape";
  RecordedSample empty;
  Resize(empty, loader.description(), loader.shape().sequence_length);
  std::vector<RecordedSample> samples(count, empty);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t position = order == ReadOrder::kForward ? i : count - 1 - i;
    SHALE_RETURN_IF_ERROR(
        loader.Fill({.begin = 0, .count = count}, /*rank=*/0, position, PartsOf(samples[position])).status());
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
  ForEachPart([&](const auto& part) {
    // The loader of a run asks for no weights if the source has none.
    const auto& to = out.*part.span;
    std::copy_n((recorded.*part.vector).begin(), to.size(), to.begin());
  });
  if (edit_) edit_(sample, out);
  return absl::OkStatus();
}

}  // namespace shale
