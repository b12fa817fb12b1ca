#include "engine/planner/trial.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/graph/data_needs.h"
#include "engine/model/model.h"
#include "engine/planner/generation.h"
#include "engine/planner/limits.h"
#include "engine/step/combination.h"
#include "kernels/ops/matmul.h"

namespace shale {

absl::Status CheckSameParameters(const ModelGraph& train, const ModelGraph& other, absl::string_view mode) {
  const auto same = [](const Parameter& a, const Parameter& b) {
    return a.name == b.name && a.shape == b.shape && a.group == b.group;
  };
  const auto [a, b] = std::mismatch(train.parameters.begin(), train.parameters.end(), other.parameters.begin(),
                                    other.parameters.end(), same);
  if (a == train.parameters.end() && b == other.parameters.end()) return absl::OkStatus();
  const std::string& name = a != train.parameters.end() ? a->name : b->name;
  return absl::InvalidArgumentError(absl::StrCat("the model's parameters for training and for ", mode,
                                                 " differ, first at ", name,
                                                 "; a model must have the same parameters in every mode"));
}

namespace {

// Builds the graphs of generation: one sequence, on every rank.
absl::StatusOr<std::vector<ModelGraph>> BuildGenerate(const Job& job, const ModelGraph& train,
                                                      const WorkLimits& limits) {
  constexpr absl::string_view kField = "runtime.generate: ";
  if (NeedsOf(train).features > 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        kField, "the model reads features, and only a model that reads tokens can generate; leave it out"));
  }
  absl::StatusOr<std::vector<ModelGraph>> graphs = BuildGeneration(job, {}, limits);
  if (!graphs.ok()) return absl::Status(graphs.status().code(), absl::StrCat(kField, graphs.status().message()));
  for (const ModelGraph& graph : *graphs) SHALE_RETURN_IF_ERROR(CheckSameParameters(train, graph, "generation"));
  return graphs;
}

}  // namespace

absl::StatusOr<ModelGraph> BuildGraph(const Job& job, GraphMode mode, const WorkLimits& limits) {
  SHALE_RETURN_IF_ERROR(limits.Check());
  SHALE_RETURN_IF_ERROR(CheckGraphSize(job, limits));
  return BuildModel(job.model, GraphOptionsFor(job, mode));
}

absl::StatusOr<JobGraphs> BuildGraphs(const Job& job, const WorkLimits& limits) {
  JobGraphs graphs;
  SHALE_ASSIGN_OR_RETURN(graphs.train, BuildGraph(job, GraphMode::kTraining, limits));
  SHALE_ASSIGN_OR_RETURN(graphs.evaluate, BuildGraph(job, GraphMode::kEvaluation, limits));
  SHALE_RETURN_IF_ERROR(CheckSameParameters(graphs.train, graphs.evaluate, "evaluation"));
  if (job.runtime.generate) {
    SHALE_ASSIGN_OR_RETURN(graphs.generate, BuildGenerate(job, graphs.train, limits));
  }
  return graphs;
}

absl::StatusOr<PlannedStep> CompileAndPlan(const ModelGraph& graph, const StepOptions& options, const Ops& ops,
                                           const MemoryPlanOptions& memory_options, const WorkLimits& limits) {
  SHALE_RETURN_IF_ERROR(CheckCombination(options.strategy, options.accumulation));
  SHALE_RETURN_IF_ERROR(CheckProgramSize(graph, options));
  PlannedStep planned;
  SHALE_ASSIGN_OR_RETURN(planned.step, CompileStep(graph, options, ops, limits));
  SHALE_RETURN_IF_ERROR(limits.Check());
  SHALE_ASSIGN_OR_RETURN(planned.memory, PlanMemory(planned.step.program, memory_options));
  return planned;
}

absl::StatusOr<Trial> CompileTrial(const GraphRefs& graphs, const StepOptions& options, const Ops& ops,
                                   const WorkLimits& limits) {
  Trial trial;
  SHALE_ASSIGN_OR_RETURN(trial.train, CompileAndPlan(graphs.train, options, ops, {}, limits));
  StepOptions once = options;
  once.micro_batches = 1;
  SHALE_ASSIGN_OR_RETURN(trial.evaluate, CompileAndPlan(graphs.evaluate, once, ops, {}, limits));
  for (const ModelGraph* graph : graphs.generate) {
    SHALE_ASSIGN_OR_RETURN(PlannedStep planned, CompileAndPlan(*graph, once, ops, {}, limits));
    trial.generate.push_back(std::move(planned));
  }
  return trial;
}

bool PacksOnce(const StepProgram& program) {
  return std::any_of(program.instructions.begin(), program.instructions.end(), [](const Instruction& instruction) {
    const Op* op = std::get_if<Op>(&instruction.action);
    const MatMul* matmul = op == nullptr ? nullptr : op->As<MatMul>();
    return matmul != nullptr && matmul->packed_b.present();
  });
}

namespace {

// Compiles with packs_once if the budget has room for the packed weights, else sets options.packs_once to false.
absl::StatusOr<Trial> CompileWithin(const Budget& budget, const GraphRefs& graphs, StepOptions& options, const Ops& ops,
                                    const WorkLimits& limits) {
  SHALE_ASSIGN_OR_RETURN(Trial trial, CompileTrial(graphs, options, ops, limits));
  if (budget.Holds(trial.arena_bytes(), trial.host_bytes()) || !PacksOnce(trial.train.step.program)) return trial;
  options.packs_once = false;
  return CompileTrial(graphs, options, ops, limits);
}

}  // namespace

std::vector<Accumulation> AccumulationsOf(const StepOptions& options) {
  if (options.accumulation != Accumulation::kAuto) return {options.accumulation};
  if (options.gradient_shards != DType::kFloat32) return {Accumulation::kSharded, Accumulation::kLayered};
  return {Accumulation::kSharded, Accumulation::kNoSync, Accumulation::kLayered};
}

absl::StatusOr<Choice> ChooseAccumulation(const GraphRefs& graphs, const StepOptions& options, const Budget& budget,
                                          const Ops& ops, const WorkLimits& limits) {
  Choice best;
  bool any = false;
  std::vector<AccumulationCandidate> candidates;
  // Returns the key by which trials are compared; the smallest is best. A trial that fits comes before one that does
  // not. Then the one that sends least is best, then the one that exceeds the budget least, then the one that needs the
  // least memory. What a trial sends does not count if it does not fit.
  const auto rank = [&](bool fits, int64_t sent, const Trial& trial) {
    const double missing = budget.Missing(trial.arena_bytes(), trial.host_bytes());
    return std::make_tuple(!fits, fits ? sent : 0, missing, trial.arena_bytes());
  };
  for (Accumulation accumulation : AccumulationsOf(options)) {
    StepOptions tried = options;
    tried.accumulation = accumulation;
    absl::StatusOr<Trial> trial = CompileWithin(budget, graphs, tried, ops, limits);
    SHALE_RETURN_IF_ERROR(limits.Check());
    candidates.push_back({.accumulation = accumulation, .status = trial.status()});
    if (!trial.ok()) continue;
    const CommunicationSummary communication = SummarizeCommunication(trial->train.step.program, options.mesh);
    candidates.back().peak_bytes = trial->arena_bytes();
    candidates.back().host_bytes = trial->host_bytes();
    candidates.back().communicated_bytes = communication.sent_bytes;
    const bool fits = budget.Holds(trial->arena_bytes(), trial->host_bytes());
    if (any &&
        rank(fits, communication.sent_bytes, *trial) >= rank(best.fits, best.communication.sent_bytes, best.trial)) {
      continue;
    }
    any = true;
    best.options = std::move(tried);
    best.trial = *std::move(trial);
    best.communication = communication;
    best.fits = fits;
  }
  if (!any) return candidates.front().status;
  best.candidates = std::move(candidates);
  return best;
}

}  // namespace shale
