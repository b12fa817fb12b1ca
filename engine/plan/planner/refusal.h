// Finds what would make a job fit that does not fit.
#pragma once

#include "absl/status/statusor.h"
#include "engine/compile/program/work_limits.h"
#include "engine/plan/planner/draft.h"
#include "engine/plan/planner/variant.h"

namespace shale {

// Returns what the drafter's job needs at least (`draft`, which does not fit), what its budget is, and with which
// options it would fit. Compiles and plans each setting that it names. If the search reaches the deadline of `limits`,
// which are the drafter's, it ends with what it has found until then. Returns Cancelled if the work was cancelled.
absl::StatusOr<Refusal> RefusalOf(Drafter& drafter, const Draft& draft, const WorkLimits& limits);

}  // namespace shale
