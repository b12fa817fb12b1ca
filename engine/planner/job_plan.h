// From a validated job to everything that is decided before it starts: programs, addresses, bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/config/job.h"
#include "engine/graph/builder.h"
#include "engine/memory/budget.h"
#include "engine/memory/host_plan.h"
#include "engine/memory/machine.h"
#include "engine/memory/plan.h"
#include "engine/step/compile.h"
#include "kernels/op_backend.h"

namespace shale {

// A program of a job with its graph, its addresses and its waits. Holds no references: move it where you like, but an
// executor borrows program and plan.
struct PlannedProgram {
  ModelGraph graph;
  CompiledStep step;
  MemoryPlan memory;
};

// A schedule that was compiled while looking for the best one.
struct ScheduleCandidate {
  Schedule schedule = Schedule::kSharded;
  absl::Status status;             // Not OK: the strategy has no such schedule, or it is too large to be planned.
  int64_t peak_bytes = 0;          // Of one rank's arena, evaluation included.
  int64_t host_bytes = 0;          // Of host memory, for what one rank offloads.
  int64_t communicated_bytes = 0;  // Sent by one rank in one step (CommunicationSummary::sent_bytes).
};

struct JobPlan {
  StepOptions options;  // As compiled: the schedule is decided.
  PlannedProgram train;
  PlannedProgram evaluate;                    // Of one micro-batch a run, over the same persistent buffers as `train`.
  std::optional<PlannedProgram> snapshot;     // Of StepOptions::snapshot; over the same persistent buffers.
  int64_t arena_bytes = 0;                    // One rank's arena: the largest of the peaks.
  HostMemoryPlan host_memory;                 // One rank's pinned memory, for all programs and for checkpoints.
  Budget budget;                              // What one rank may plan, and offload.
  std::string schedule_reason;                // Why this schedule, with the numbers of the others.
  std::vector<ScheduleCandidate> candidates;  // In the order of the enum; one if the job names its schedule.
};

// The graph and step options that a job asks for, for `mode`; the schedule may still be AUTO. The vocabulary must be
// known.
GraphOptions GraphOptionsFor(const Job& job, GraphMode mode);
StepOptions StepOptionsFor(const Job& job);  // micro_batches is AccumulationSteps (engine/config/job.h).

// Compiles and plans the job's programs, orders their streams, and has CheckProgram prove the result. What one rank may
// plan is memory.budget_bytes, and what it may offload to host memory memory.host_budget_bytes, or else the machine's
// default (Machine::default_budget; empty: there is no limit).
// AUTO: of the schedules that exist for the strategy and fit the budget the one that communicates least, then the one
// with the least memory, then the first. Errors:
//   ResourceExhausted  nothing fits: "needs 31.2 GiB per rank, budget 24.0 GiB, 7.20 GiB too little; fits with
//                      memory.retention=BLOCK (22.1 GiB) or sharding.schedule=LAYERED (23.0 GiB)", or "offloads 31.2
//                      GiB to host memory per rank, host budget ...". The ways out were compiled too, each with the
//                      ops of its own ranks; each can be given to --set as it stands, and none changes what is
//                      computed.
//   InvalidArgument    the strategy has no such schedule; the vocabulary is unknown; the program would be too long; a
//                      name pattern matches nothing.
//   Those of the machine's default budget, unless the job names memory.budget_bytes.
absl::StatusOr<JobPlan> PlanJob(const Job& job, const Machine& machine);

// The same for a job that may be to run elsewhere: where the default budget of `here` is too small for it, or an error,
// it is planned within what the job names alone, and `remark` says so, in lines for people. Else `remark` is empty.
absl::StatusOr<JobPlan> PlanJobForAnywhere(const Job& job, const Machine& here, std::string& remark);

// One more program of a job: with the StepOptions of its plan (micro_batches apart) it has the same persistent buffers
// at the same addresses. Generation compiles kLogits, always of one micro-batch. `ops`: those of one of the job's ranks
// (Machine::create_ops). The peak may exceed JobPlan::arena_bytes; no budget is checked.
absl::StatusOr<PlannedProgram> PlanProgram(const Job& job, const StepOptions& options, GraphMode mode, const Ops& ops,
                                           const MemoryPlanOptions& memory_options = {});

}  // namespace shale
