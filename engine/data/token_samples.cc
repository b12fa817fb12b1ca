#include "engine/data/token_samples.h"

#include <algorithm>

#include "engine/data/sample_order.h"
#include "kernels/check.h"

namespace shale {

TokenSamples::TokenSamples(TokenSource source, int64_t sequence_length)
    : DataSource({.name = source.tokenizer(),
                  .samples = SampleCount(source.size(), sequence_length),
                  .sequence_length = sequence_length}),
      source_(std::move(source)) {}

absl::Status TokenSamples::Read(int64_t sample, const SampleParts& out) {
  const int64_t length = description().sequence_length, begin = sample * length;
  SHALE_RETURN_IF_ERROR(source_.Read(begin, length, out.inputs.data()));
  SHALE_RETURN_IF_ERROR(source_.Read(begin + length, 1, out.targets.data() + length - 1));
  std::copy(out.inputs.begin() + 1, out.inputs.end(), out.targets.begin());
  return source_.MaskTargets(begin + 1, length, out.targets.data());
}

}  // namespace shale
