// From a validated job to everything that is decided before it starts: programs, addresses, bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/config/job.h"
#include "engine/memory/plan.h"
#include "engine/step/compile.h"
#include "kernels/op_backend.h"

namespace shale {

// One program of the job with its addresses and waits.
struct PlannedProgram {
  ModelGraph graph;
  CompiledStep step;
  MemoryPlan memory;
};

// A schedule that was compiled while looking for the best one.
struct ScheduleCandidate {
  Schedule schedule = Schedule::kSharded;
  absl::Status status;        // Not OK: does not exist for the strategy.
  int64_t peak_bytes = 0;     // Per rank.
  int64_t communicated_bytes = 0;  // By one rank in one step.
};

struct JobPlan {
  StepOptions options;  // As compiled: the schedule is decided.
  PlannedProgram train;
  PlannedProgram evaluate;
  int64_t arena_bytes = 0;   // One rank's arena: the largest of the programs' peaks.
  int64_t budget_bytes = 0;  // What one rank may plan.
  std::string schedule_reason;  // Why this schedule, with the numbers of the others.
  std::vector<ScheduleCandidate> candidates;
};

// The graph and step options that a job asks for, for `mode`; the schedule may still be AUTO. The vocabulary must be known.
GraphOptions GraphOptionsFor(const Job& job, GraphMode mode);
StepOptions StepOptionsFor(const Job& job);  // micro_batches is AccumulationSteps (engine/config/job.h).

// What one rank may plan: memory.budget_bytes, or 80 % of this machine's memory divided by the ranks.
int64_t BudgetBytes(const Job& job);

// Compiles and plans the job's programs. AUTO: of the schedules that exist for the strategy and fit the budget the one that
// communicates least, then the one with the least memory. ResourceExhausted when nothing fits: "needs 31.2 GiB, budget
// 24.0 GiB; fits with activation BLOCK (22.1 GiB) or schedule LAYERED (23.0 GiB)". `ops` is asked for scratch sizes only.
absl::StatusOr<JobPlan> PlanJob(const Job& job, const Ops& ops);

// A program with graph `mode` for the same persistent state as `plan.train` (generation compiles kLogits).
absl::StatusOr<PlannedProgram> PlanProgram(const Job& job, const StepOptions& options, GraphMode mode, const Ops& ops,
                                           const MemoryPlanOptions& memory_options = {});

}  // namespace shale
