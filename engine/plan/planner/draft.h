// Draft: the programs of a job, compiled and with addresses, so that their cost is known. It has no waits between
// streams yet, and CheckProgram has not proved it.
//
// Beside it: the checks that refuse jobs that are not worth planning, and what would make a job fit that does not.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/api/graph_builder.h"
#include "engine/compile/graph/graph.h"
#include "engine/compile/memory/machine.h"
#include "engine/compile/memory/plan.h"
#include "engine/compile/program/work_limits.h"
#include "engine/compile/step/compile.h"
#include "engine/compile/step/options.h"
#include "engine/plan/config/job.h"
#include "engine/plan/planner/variant.h"
#include "engine/plan/time/prediction.h"
#include "kernels/op_backend.h"

namespace shale {

// The graphs of the programs of a run. They do not depend on StepOptions.
struct JobGraphs {
  ModelGraph train;
  ModelGraph evaluate;               // Of a sketch, this and those below may be empty.
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

// Return whether the program keeps weights packed, or in fp8, for several micro-batches
// (StepOptions::prepares_weights_once).
bool PacksOnce(const StepProgram& program);
bool QuantizesOnce(const StepProgram& program);
// Returns whether weights are gathered in fp8 (GatherFloat8 in engine/compile/step/passes.h).
bool GathersFloat8(const StepProgram& program);

// Returns the budget of one rank. For the arena and for host memory, this is the number of bytes that the job sets,
// otherwise that of `default_budget`; without either there is no limit. Returns an error of `default_budget` only if
// the job does not set memory.budget_bytes.
absl::StatusOr<Budget> BudgetOf(const Job& job, const DefaultBudget& default_budget);

// The seconds of a step that were predicted, and the share of them that is measured or interpolated.
struct StepTime {
  double seconds = 0;  // 0: not known.
  double known = 0;

  void Fill(Cost& cost) const { cost.seconds = seconds, cost.known = known; }
};

struct Draft {
  std::shared_ptr<JobGraphs> graphs;  // Drafts of one Drafter may share them.
  StepOptions options;                // `accumulation` and `prepares_weights_once` are decided.
  PlannedStep train, evaluate;        // Evaluation and generation run one micro-batch.
  std::vector<PlannedStep> generate;  // One for each graph of JobGraphs::generate.
  Budget budget;
  Cost cost;
  bool fits = false;  // Whether `budget` holds `cost`.
  // The accumulations that were compiled, in the order of the enum; one if the job names its accumulation.
  std::vector<Variant> candidates;
  bool by_seconds = false;                    // Whether the accumulation was chosen by its predicted seconds.
  std::optional<StepTime> time;               // Once Drafter::TimeOf has predicted it. Goes when the programs change.
  std::shared_ptr<const ProgramWorks> works;  // Of the training program, once they were asked for.
};

// Compiles a job, also with other settings. Any thread may call Sketch, Place, TimeOf and LeastSecondsOf, each with a
// draft of its own. The others are not thread-safe. Borrows what it is created from.
class Drafter {
 public:
  // `job_with` makes the variants of `job`; empty: WithOverrides (engine/api/job.h).
  Drafter(const Job& job, const Machine& machine, const WorkLimits& limits, JobWith job_with = {});

  const Job& job() const { return job_; }
  const Machine& machine() const { return machine_; }
  // Returns the machine's ops for this number of ranks. Each thread has its own.
  const Ops& OpsOf(int64_t ranks);

  absl::StatusOr<Job> With(const std::vector<Override>& overrides) const;

  // Returns the draft of the job with the overrides. If its accumulation is AUTO, tries all of them. Takes the one that
  // fits the budget and sends least, and among equals the one that needs the least memory. If none fits, takes the one
  // that exceeds the budget least. If the machine's speed is known, and kCoveredShare of a step with each that fits was
  // measured there, takes the fastest that fits. Of a job with one micro-batch a step, takes the first that fits.
  //
  // Returns InvalidArgument if the job cannot have the settings, or has more ranks than the machine has room for; the
  // error of the first accumulation if none can be compiled; errors of the machine's default budget; and those of
  // `limits`.
  absl::StatusOr<Draft> Compile(const std::vector<Override>& overrides = {});

  // Does the same, but compiles only the training program, and no buffer gets its final address: the bytes of the cost
  // are those that any plan needs at least, and waits derived from `train.memory` are those of the data alone. So a
  // step of it takes no longer than one of the draft that Place makes of it. For searches, which can tell from it that
  // most variants of a job are no better than one that they have.
  absl::StatusOr<Draft> Sketch(const Job& job);
  // Makes a whole draft of a sketch of `job`. Its cost counts the programs that only evaluate or generate, but
  // the draft may lack them.
  absl::StatusOr<Draft> Place(const Job& job, Draft sketch);

  // Predicts a step of `draft`, which is one of `job`, for the machine, unless that was done before. Derives the waits
  // of the training program.
  StepTime TimeOf(const Job& job, Draft& draft);
  // Returns seconds of which TimeOf returns no less for `draft`, nor for one that Place makes of it. Takes a small part
  // of the time.
  double LeastSecondsOf(const Job& job, Draft& draft);

  // Does what Compile does, and keeps only what the draft costs. An error is in Variant::status. Its cost has the
  // seconds of a step if the machine's speed is known.
  Variant Try(std::vector<Override> overrides, std::string caveat = "");
  // Does the same, and also counts the scratch that a plan gets where there is room (TakeAmpleScratch).
  Variant TryWithAmpleScratch(std::vector<Override> overrides);

  // Returns whether a limit ended a call, or was reached in it.
  bool stopped() const { return stopped_; }

 private:
  // Returns the graph of training, and others if they were built before. InvalidArgument if the job has more ranks than
  // the machine has room for.
  absl::StatusOr<std::shared_ptr<JobGraphs>> GraphsOf(const Job& job);
  // Predicts steps on the machine. REQUIRES: its speed is known.
  Predictor& PredictorOf();
  // Returns Draft::works, which it finds out if need be.
  const ProgramWorks& WorksOf(const StepFacts& facts, Draft& draft);
  StepFacts FactsOf(const Job& job, const Draft& draft) const;
  // Returns the variant of a draft, with its seconds if the machine's speed is known.
  Variant Timed(std::vector<Override> overrides, std::string caveat, absl::StatusOr<Draft> draft);
  using CompilePart = absl::Status (*)(Draft& draft, const Ops& ops, const WorkLimits& limits);
  // Builds the graphs beside that of training, if they were not built before.
  absl::Status BuildOthers(const Job& job, JobGraphs& graphs);
  absl::StatusOr<Draft> CompileWhole(const Job& job);
  // Counts the other programs of a draft of `job` in its cost.
  absl::Status CountOthers(const Job& job, const Ops& ops, Draft& draft);
  // Returns the best of the accumulations that the job may take, each compiled by `compile`. With `first_that_fits`
  // compiles no others after the first that fits, where their order is known.
  absl::StatusOr<Draft> CompileBest(const Job& job, std::shared_ptr<JobGraphs> graphs, CompilePart compile,
                                    bool first_that_fits = false);
  absl::StatusOr<Draft> CompileAccumulation(const Draft& wanted, Accumulation accumulation, const Ops& ops,
                                            CompilePart compile);

  const Job& job_;
  const Machine& machine_;
  const WorkLimits& limits_;
  const JobWith job_with_;
  // Guards the members below and the graphs that drafts share. Held while a graph is built, so that no other thread
  // builds the same.
  std::mutex mutex_;
  std::map<std::pair<int64_t, std::thread::id>, std::unique_ptr<Ops>> ops_;  // By the number of ranks and the thread.
  // The graphs that were built, and what for. Most variants have the same.
  struct BuiltGraphs {
    GraphOptions options;
    ModelConfig model;
    std::shared_ptr<JobGraphs> graphs;
  };
  std::vector<BuiltGraphs> graphs_;
  // The bytes of the programs beside that of training. Variants that differ in what is recomputed have the same.
  struct OtherBytes {
    Job job;  // Without activation checkpointing, and with the accumulation.
    int64_t arena_bytes = 0, host_bytes = 0;
  };
  std::vector<OtherBytes> others_;
  std::unique_ptr<Predictor> predictor_;  // Null as long as nothing was predicted.
  bool stopped_ = false;
};

// Gives the step of training the scratch with which its ops are fastest, if the budget has room for it. Each takes a
// small part of the budget, so that what a user adds to the job later finds room.
absl::Status TakeAmpleScratch(Draft& draft, const Ops& ops);

// 1 EiB: more memory than a rank of any machine has.
inline constexpr double kLargestPlanBytes = 0x1p60;

// Returns an estimate of the number of instructions of the job's program. That of a custom model counts
// CustomModel::layers.
double EstimatedInstructions(const Job& job);

// Checks the sizes of the graph's tensors, and EstimatedInstructions against `limits`. Call it before the graph is
// built. Returns InvalidArgument, which names the fields to change.
absl::Status CheckGraphSize(const Job& job, const WorkLimits& limits);

// Checks an upper bound of the bytes that the program could hold at once. Call it before the program is compiled.
// Returns ResourceExhausted, which names the fields to change.
absl::Status CheckProgramSize(const ModelGraph& graph, const StepOptions& options);

// Returns bytes that the program of a step needs at least with LAYERED, whatever accumulation `options` has: what
// backward finds of all micro-batches when the last unit begins, or a part of it. 0 if it is offloaded, or kept in
// segments.
double LeastLayeredBytes(const ModelGraph& graph, const StepOptions& options);

// Returns InvalidArgument, which names the field, if a pattern of optimizer.no_decay matches no parameter, if one of
// activation_checkpointing.recompute matches no activation that could be recomputed, or if one of memory.offload
// matches no activation. The builder of the graph has checked those of optimizer.train_only. Returns the error of
// `limits`, which it looks at pattern by pattern, if the work must end.
absl::Status CheckPatterns(const Job& job, const ModelGraph& model, const WorkLimits& limits = {});

// Returns what the drafter's job needs at least (`draft`, which does not fit), what its budget is, and with which
// options it would fit. Compiles and plans each setting that it names, and predicts the seconds of a step of each if
// the machine's speed is known. If the search reaches the deadline of `limits`, which are the drafter's, it ends with
// what it has found until then. Returns Cancelled if the work was cancelled.
absl::StatusOr<Refusal> RefusalOf(Drafter& drafter, Draft& draft, const WorkLimits& limits);

}  // namespace shale
