// Trials: a job's programs, compiled and planned to see what they cost, but not yet ordered or proved.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/planner/job_plan.h"
#include "engine/planner/summary.h"

namespace shale {

// The graphs of the programs that every run has. They do not depend on StepOptions.
struct JobGraphs {
  ModelGraph train;
  ModelGraph evaluate;
};
absl::StatusOr<ModelGraph> BuildGraph(const Job& job, GraphMode mode);
absl::StatusOr<JobGraphs> BuildGraphs(const Job& job);

struct PlannedStep {
  CompiledStep step;
  MemoryPlan memory;
};
// The options' schedule must be decided.
absl::StatusOr<PlannedStep> CompileAndPlan(const ModelGraph& graph, const StepOptions& options, const Ops& ops,
                                           const MemoryPlanOptions& memory_options = {});

struct Trial {
  PlannedStep train, evaluate;
  int64_t arena_bytes() const { return std::max(train.memory.peak_bytes, evaluate.memory.peak_bytes); }
  int64_t host_bytes() const { return std::max(train.memory.host_bytes, evaluate.memory.host_bytes); }
};
// The evaluation program is that of one micro-batch.
absl::StatusOr<Trial> CompileTrial(const ModelGraph& train, const ModelGraph& evaluate, const StepOptions& options,
                                   const Ops& ops);

// The schedules that the job leaves to choose from.
std::vector<Schedule> SchedulesOf(const StepOptions& options);

// Whether weights stay packed for several micro-batches (StepOptions::packs_once, where products have a use for it).
bool PacksOnce(const StepProgram& program);

// The cheapest way to run a job: of the schedules it leaves open the one that fits the budget and communicates least,
// then needs the least memory; when none fits, the one with the least memory.
struct Choice {
  StepOptions options;  // With the schedule decided, and packs_once.
  Trial trial;
  CommunicationSummary communication;
  bool fits = false;
  std::vector<ScheduleCandidate> candidates;
};
// The error of the first schedule if none can be compiled.
absl::StatusOr<Choice> ChooseSchedule(const ModelGraph& train, const ModelGraph& evaluate, const StepOptions& options,
                                      const Budget& budget, const Ops& ops);

}  // namespace shale
