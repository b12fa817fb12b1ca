// Budgets, and the advice to the owner of a job that does not fit its budget.
#pragma once

#include "absl/status/statusor.h"
#include "engine/memory/machine.h"
#include "engine/planner/refusal.h"
#include "engine/planner/trial.h"
#include "engine/program/work_limits.h"

namespace shale {

// Returns the budget of one rank. For the arena and for host memory, this is the number of bytes that the job sets,
// otherwise that of `default_budget`; without either there is no limit. Returns an error of `default_budget` only if
// the job does not set memory.budget_bytes.
absl::StatusOr<Budget> BudgetOf(const Job& job, const DefaultBudget& default_budget);

// Returns what the job needs at least (`choice`), what its budget is, and with which settings it would fit. Compiles
// and plans each setting that it names. If one of them changes what is computed, WayOut::caveat says so. `ops` are the
// machine's ops for the job's number of ranks. If the search reaches the deadline of `limits`, it ends with what it has
// found until then. Returns Cancelled if the work was cancelled.
absl::StatusOr<Refusal> RefusalOf(const Job& job, const Choice& choice, const Budget& budget, const Machine& machine,
                                  const Ops& ops, const WorkLimits& limits);

}  // namespace shale
