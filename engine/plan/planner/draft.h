// Draft: the programs of a job, compiled and with addresses, so that their cost is known. It has no waits between
// streams yet, and CheckProgram has not proved it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/api/graph_builder.h"
#include "engine/compile/memory/machine.h"
#include "engine/compile/memory/plan.h"
#include "engine/compile/program/work_limits.h"
#include "engine/compile/step/compile.h"
#include "engine/plan/config/job.h"
#include "engine/plan/planner/variant.h"
#include "kernels/op_backend.h"

namespace shale {

// The graphs of the programs of a run. They do not depend on StepOptions.
struct JobGraphs {
  ModelGraph train;
  ModelGraph evaluate;
  std::vector<ModelGraph> generate;  // With runtime.generate: BuildGeneration of one sequence.
};
// Returns InvalidArgument unless two graphs of a model have the same parameters. All programs of a run share their
// persistent buffers, and the function of a custom model may break that. `mode` says for the message what `other` is
// for.
absl::Status CheckSameParameters(const ModelGraph& train, const ModelGraph& other, absl::string_view mode);
// Builds one graph of a job. Returns InvalidArgument if the job is too large to be planned (CheckGraphSize).
absl::StatusOr<ModelGraph> BuildGraph(const Job& job, GraphMode mode, const WorkLimits& limits = {});

struct PlannedStep {
  CompiledStep step;
  MemoryPlan memory;
};
// Compiles the program of `graph` and plans its memory. Returns the error of `limits` if the work must end. REQUIRES:
// options.accumulation is not kAuto.
absl::StatusOr<PlannedStep> CompileAndPlan(const ModelGraph& graph, const StepOptions& options, const Ops& ops,
                                           const MemoryPlanOptions& memory_options = {}, const WorkLimits& limits = {});

// Returns whether the program keeps weights packed for several micro-batches (StepOptions::packs_once). This is never
// so if no matmul uses packed weights.
bool PacksOnce(const StepProgram& program);

// Returns the budget of one rank. For the arena and for host memory, this is the number of bytes that the job sets,
// otherwise that of `default_budget`; without either there is no limit. Returns an error of `default_budget` only if
// the job does not set memory.budget_bytes.
absl::StatusOr<Budget> BudgetOf(const Job& job, const DefaultBudget& default_budget);

struct Draft {
  std::shared_ptr<JobGraphs> graphs;  // Drafts of one Drafter may share them.
  StepOptions options;                // `accumulation` and `packs_once` are decided.
  PlannedStep train, evaluate;        // Evaluation and generation run one micro-batch.
  std::vector<PlannedStep> generate;  // One for each graph of JobGraphs::generate.
  Budget budget;
  Cost cost;
  bool fits = false;  // Whether `budget` holds `cost`.
  // The accumulations that were compiled, in the order of the enum; one if the job names its accumulation.
  std::vector<Variant> candidates;
};

// Compiles a job, also with other settings. Not thread-safe. Borrows what it is created from.
class Drafter {
 public:
  // `job_with` makes the variants of `job`; empty: WithOverrides (engine/api/job.h).
  Drafter(const Job& job, const Machine& machine, const WorkLimits& limits, JobWith job_with = {});

  const Job& job() const { return job_; }
  const Machine& machine() const { return machine_; }
  // Returns the machine's ops for this number of ranks.
  const Ops& OpsOf(int64_t ranks);

  absl::StatusOr<Job> With(const std::vector<Override>& overrides) const;

  // Returns the draft of the job with the overrides. If its accumulation is AUTO, tries all of them. Takes the one that
  // fits the budget and sends least, and among equals the one that needs the least memory. If none fits, takes the one
  // that exceeds the budget least.
  //
  // Returns InvalidArgument if the job cannot have the settings, or has more ranks than the machine has room for; the
  // error of the first accumulation if none can be compiled; errors of the machine's default budget; and those of
  // `limits`.
  absl::StatusOr<Draft> Compile(const std::vector<Override>& overrides = {});

  // Does the same, and keeps only what the draft costs. An error is in Variant::status.
  Variant Try(std::vector<Override> overrides, std::string caveat = "");

  // Returns whether a limit ended a call, or was reached in it.
  bool stopped() const { return stopped_; }

 private:
  absl::StatusOr<Draft> CompileJob(const Job& job);
  absl::StatusOr<std::shared_ptr<JobGraphs>> GraphsOf(const Job& job);
  absl::StatusOr<Draft> CompileAccumulation(const Draft& wanted, Accumulation accumulation, const Ops& ops);

  const Job& job_;
  const Machine& machine_;
  const WorkLimits& limits_;
  const JobWith job_with_;
  std::map<int64_t, std::unique_ptr<Ops>> ops_;  // By the number of ranks.
  // The graphs that were built first, and what they were built for. Most variants have the same.
  std::optional<GraphOptions> graph_options_;
  ModelConfig model_;
  std::shared_ptr<JobGraphs> graphs_;
  bool stopped_ = false;
};

}  // namespace shale
