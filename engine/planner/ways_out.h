// What to tell the owner of a job that does not fit.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/memory/budget.h"
#include "engine/memory/machine.h"
#include "engine/planner/trial.h"

namespace shale {

// What the job names, of the arena and of host memory each, or else the default; without either there is no limit. An
// error of the default counts only where the job does not name memory.budget_bytes.
absl::StatusOr<Budget> BudgetOf(const Job& job, const DefaultBudget& default_budget);

// ResourceExhausted: what the job needs at least (`choice`), its budget, and the settings with which it would fit. Each
// was compiled and planned; none changes what is computed. `ops`: the machine's, for the job's ranks.
absl::Status DoesNotFit(const Job& job, const Choice& choice, const Budget& budget, const Machine& machine,
                        const Ops& ops);

}  // namespace shale
