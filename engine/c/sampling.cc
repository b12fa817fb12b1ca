#include "engine/c/sampling.h"

#include "absl/status/status.h"
#include "engine/c/calls.h"
#include "kernels/check.h"

namespace shale::c {

absl::StatusOr<SamplingOptions> TakeSampling(const shale_sampling* sampling) {
  if (sampling == nullptr) return SamplingOptions{};
  SHALE_ASSIGN_OR_RETURN(const shale_sampling taken, TakeStruct(sampling, "sampling"));
  const SamplingOptions options{.repetition_penalty = taken.repetition_penalty == 0 ? 1 : taken.repetition_penalty,
                                .temperature = taken.temperature,
                                .top_k = taken.top_k,
                                .top_p = taken.top_p == 0 ? 1 : taken.top_p,
                                .min_p = taken.min_p,
                                .seed = taken.seed};
  SHALE_RETURN_IF_ERROR(CheckSampling(options));
  return options;
}

}  // namespace shale::c
