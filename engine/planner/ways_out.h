// What to tell the owner of a job that does not fit.
#pragma once

#include "absl/status/status.h"
#include "engine/planner/trial.h"

namespace shale {

// ResourceExhausted: what the job needs at least (`choice`), its budget, and the settings with which it would fit. Each
// was compiled and planned; none changes what is computed.
absl::Status DoesNotFit(const Job& job, const Choice& choice, const Ops& ops);

}  // namespace shale
