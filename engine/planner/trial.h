// A trial is a job's programs, compiled and planned to find their cost. A trial has no waits between streams yet, and
// CheckProgram has not proved it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/planner/job_plan.h"
#include "engine/planner/summary.h"
#include "engine/program/work_limits.h"

namespace shale {

// The graphs of the programs of a run. They do not depend on StepOptions.
struct JobGraphs {
  ModelGraph train;
  ModelGraph evaluate;
  std::vector<ModelGraph> generate;  // With runtime.generate: BuildGeneration of one sequence.
};
// Returns InvalidArgument unless two graphs of a model have the same parameters. All programs of a run share their
// persistent buffers, and the function of a custom model may break that. `mode` is what `other` is for.
absl::Status CheckSameParameters(const ModelGraph& train, const ModelGraph& other, absl::string_view mode);
// Build one graph of a job, or all. Return InvalidArgument if the job is too large to be planned (CheckGraphSize), or
// if runtime.generate is set and the model cannot generate.
absl::StatusOr<ModelGraph> BuildGraph(const Job& job, GraphMode mode, const WorkLimits& limits = {});
absl::StatusOr<JobGraphs> BuildGraphs(const Job& job, const WorkLimits& limits = {});

// The same graphs, borrowed.
struct GraphRefs {
  GraphRefs(const JobGraphs& graphs)  // Not explicit: a function that borrows graphs takes them in any of their forms.
      : train(graphs.train), evaluate(graphs.evaluate) {
    for (const ModelGraph& graph : graphs.generate) generate.push_back(&graph);
  }
  GraphRefs(const JobPlan& plan) : train(plan.train.graph), evaluate(plan.evaluate.graph) {
    for (const PlannedProgram& program : plan.generate) generate.push_back(&program.graph);
  }

  const ModelGraph& train;
  const ModelGraph& evaluate;
  std::vector<const ModelGraph*> generate;
};

struct PlannedStep {
  CompiledStep step;
  MemoryPlan memory;
};
// Compiles the program of `graph` and plans its memory. Returns the error of `limits` if the work must end. REQUIRES:
// options.accumulation is not kAuto.
absl::StatusOr<PlannedStep> CompileAndPlan(const ModelGraph& graph, const StepOptions& options, const Ops& ops,
                                           const MemoryPlanOptions& memory_options = {}, const WorkLimits& limits = {});

struct Trial {
  PlannedStep train, evaluate;
  std::vector<PlannedStep> generate;  // One for each such graph.
  int64_t arena_bytes() const { return Largest(&MemoryPlan::peak_bytes); }
  int64_t host_bytes() const { return Largest(&MemoryPlan::host_bytes); }

 private:
  int64_t Largest(int64_t MemoryPlan::*bytes) const {
    int64_t largest = std::max(train.memory.*bytes, evaluate.memory.*bytes);
    for (const PlannedStep& program : generate) largest = std::max(largest, program.memory.*bytes);
    return largest;
  }
};
// Compiles and plans all programs. Those of evaluation and of generation run one micro-batch.
absl::StatusOr<Trial> CompileTrial(const GraphRefs& graphs, const StepOptions& options, const Ops& ops,
                                   const WorkLimits& limits = {});

// Returns the accumulations to choose from: the one that the options name, or all of them for kAuto. Leaves out NO_SYNC
// if gradients are summed in bf16, which it refuses (CheckGradientShards).
std::vector<Accumulation> AccumulationsOf(const StepOptions& options);

// Returns whether the program keeps weights packed for several micro-batches (StepOptions::packs_once). This is never
// so if no matmul uses packed weights.
bool PacksOnce(const StepProgram& program);

// The cheapest way to run a job. Of the candidate accumulations that fit the budget, it has the one that communicates
// least, and among equals the one that needs the least memory. If none fits, it has the one that exceeds the budget
// least.
struct Choice {
  StepOptions options;  // `accumulation` and `packs_once` are decided.
  Trial trial;
  CommunicationSummary communication;
  bool fits = false;
  std::vector<AccumulationCandidate> candidates;
};
// Tries all accumulations of AccumulationsOf(options). Returns the error of the first one if none can be compiled, and
// that of `limits` if the work must end.
absl::StatusOr<Choice> ChooseAccumulation(const GraphRefs& graphs, const StepOptions& options, const Budget& budget,
                                          const Ops& ops, const WorkLimits& limits = {});

}  // namespace shale
