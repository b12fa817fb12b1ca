// How the C interface says how tokens are drawn.
#pragma once

#include "absl/status/statusor.h"
#include "engine/api/sampler.h"
#include "engine/c/shale.h"

namespace shale::c {

// Returns the options; the defaults for null. Returns InvalidArgument for a struct or values that are wrong.
absl::StatusOr<SamplingOptions> TakeSampling(const shale_sampling* sampling);

}  // namespace shale::c
