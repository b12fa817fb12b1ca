#include "engine/c/sampling.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/c/calls.h"
#include "kernels/check.h"

namespace shale::c {

absl::StatusOr<SamplingOptions> TakeSampling(const shale_sampling* sampling) {
  if (sampling == nullptr) return SamplingOptions{};
  SHALE_ASSIGN_OR_RETURN(const shale_sampling taken, TakeStruct(sampling, "sampling"));
  if (!(taken.temperature >= 0) || taken.top_k < 0) {
    return absl::InvalidArgumentError(absl::StrCat("sampling has temperature ", taken.temperature, " and top_k ",
                                                   taken.top_k, "; neither may be negative"));
  }
  return SamplingOptions{.temperature = taken.temperature, .top_k = taken.top_k, .seed = taken.seed};
}

}  // namespace shale::c
