#include "engine/plan/planner/job_plan.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "engine/compile/memory/plan.h"
#include "engine/compile/step/options_enums.h"
#include "engine/files/checkpoint/shard_writer.h"
#include "engine/plan/planner/draft.h"
#include "engine/plan/planner/generation.h"
#include "engine/strings/printing.h"

namespace shale {
namespace {

// Derives the waits between the streams of a planned program, and proves the result.
absl::Status Finish(PlannedProgram& program, const WorkLimits& limits = {}) {
  SHALE_RETURN_IF_ERROR(limits.Check());
  DeriveWaits(program.step.program, program.memory);
  SHALE_RETURN_IF_ERROR(limits.Check());
  return CheckProgram(program.step.program, program.memory, limits);
}

std::string DescribeAccumulation(const Variant& c, const StepOptions& options) {
  if (!c.status.ok()) {
    const bool exists = CheckCombination(options.strategy, c.accumulation).ok();
    return absl::StrCat(
        ToString(c.accumulation),
        exists ? absl::StrCat(": cannot be compiled, ", absl::StrReplaceAll(c.status.message(), {{"\n", "; "}}))
               : absl::StrCat(": not with strategy ", ToString(options.strategy)));
  }
  return absl::StrCat(ToString(c.accumulation), ": ", CostText(c.cost), ", sends ", FormatBytes(c.cost.sent_bytes),
                      c.cost.seconds > 0 ? absl::StrCat(", ", FormatSeconds(c.cost.seconds), " a step") : "",
                      c.fits ? "" : ", does not fit");
}

// Returns why the accumulation was chosen, in words and numbers.
std::string Reason(const Draft& draft) {
  const Accumulation chosen = draft.options.accumulation;
  if (draft.candidates.size() == 1) return "the job names it";
  std::vector<std::string> others;
  bool sends_as_much = false, fits_too = false;
  for (const Variant& c : draft.candidates) {
    if (c.accumulation == chosen) continue;
    others.push_back(DescribeAccumulation(c, draft.options));
    fits_too |= c.fits;
    sends_as_much |= c.fits && c.cost.sent_bytes == draft.cost.sent_bytes;
  }
  std::string reason = absl::StrCat("it needs ", CostText(draft.cost));
  if (draft.options.micro_batches == 1 && draft.fits) {
    absl::StrAppend(&reason, " and sends ", FormatBytes(draft.cost.sent_bytes), " a step");
    if (draft.by_seconds) absl::StrAppend(&reason, ", which takes ", FormatSeconds(draft.cost.seconds));
    absl::StrAppend(&reason, "; with one micro-batch a step all send the same, and this is the first that fits");
  } else if (draft.by_seconds) {
    absl::StrAppend(&reason, " and takes ", FormatSeconds(draft.cost.seconds),
                    " a step, as the machine was measured: the fastest that fits");
  } else if (!draft.fits) {
    absl::StrAppend(&reason, "; none fits, and this one exceeds the budget least");
  } else if (draft.options.mesh.ranks() == 1) {
    absl::StrAppend(&reason, ", the smallest arena that fits, and one rank sends nothing");
  } else {
    absl::StrAppend(&reason, " and sends ", FormatBytes(draft.cost.sent_bytes), " a step");
    if (!fits_too) {
      absl::StrAppend(&reason, "; no other fits");
    } else if (sends_as_much) {
      absl::StrAppend(&reason, ": the least communication that fits, and of those the least memory");
    } else {
      absl::StrAppend(&reason, ": the least communication that fits");
    }
  }
  return absl::StrCat(reason, " (", absl::StrJoin(others, "; "), ")");
}

}  // namespace

GraphOptions GraphOptionsFor(const Job& job, GraphMode mode) {
  GraphOptions options;
  options.mode = mode;
  options.compute_dtype = DTypeOf(job.precision.compute);
  options.micro_batch = job.batch.micro_batch;
  options.sequence_length = job.batch.sequence_length;
  options.vocabulary = Vocabulary(job.model);
  options.loss_chunk_tokens = LossChunkTokens(job);
  options.last_target_only = LastTargetOnly(job.model);
  options.target_weights = job.data.target_weights;
  // A prompt is one document, whose positions are those of the sequence.
  options.position_ids = job.data.packing == Packing::kPack && mode != GraphMode::kLogits;
  options.padding = job.data.packing == Packing::kPad;
  options.train_only = job.optimizer.train_only;
  options.frozen_weights = job.optimizer.frozen_weights;
  options.fp32_logits = job.precision.fp32_logits;
  options.float8_matmuls = job.precision.matmuls == MatMulPrecision::kFloat8;
  options.float8_gradients =
      job.precision.fp8_gradients == Float8Gradients::kE4M3 ? DType::kFloat8E4M3 : DType::kFloat8E5M2;
  options.float8_blockwise = job.precision.fp8_scaling == Float8Scaling::kBlockwise;
  options.optimizer_groups = PatternsOfGroups(job.optimizer);
  options.divided_groups = DividedGroups(job.optimizer);
  return options;
}

StepOptions StepOptionsFor(const Job& job) {
  StepOptions options;
  options.strategy = job.sharding.strategy;
  options.accumulation = job.sharding.accumulation;
  options.mesh = {.replicate = job.sharding.ranks / ShardRanks(job.sharding), .shard = ShardRanks(job.sharding)};
  options.micro_batches = AccumulationSteps(job.batch, job.sharding.ranks);
  options.prefetch = job.sharding.prefetch;
  options.reshard_after_forward = job.sharding.reshard_after_forward;
  options.master = job.precision.master;
  if (job.precision.gradient_shards == GradientShards::kBFloat16) options.gradient_shards = DType::kBFloat16;
  if (job.precision.reduce == ReducePrecision::kBFloat16) options.reduce = DType::kBFloat16;
  if (job.precision.compute == ComputePrecision::kFloat16) {
    options.loss_scaling = LossScaling{.init_scale = job.precision.init_scale,
                                       .growth_factor = job.precision.growth_factor,
                                       .backoff_factor = job.precision.backoff_factor,
                                       .growth_interval = job.precision.growth_interval};
  }
  options.offload_state = job.memory.offload_state;
  options.activations = {.preset = job.activation_checkpointing.preset,
                         .every_nth = job.activation_checkpointing.every_nth,
                         .first_layers = job.activation_checkpointing.first_layers,
                         .last_layers = job.activation_checkpointing.last_layers,
                         .segment_blocks = SegmentBlocks(job),
                         .patterns = job.activation_checkpointing.recompute,
                         .offload = job.memory.offload};
  options.optimizer = MakeOptimizer(job.optimizer);
  options.optimizer_groups = MakeGroupOptimizers(job.optimizer);
  options.seed = job.runtime.seed;
  options.update = job.optimizer.update;
  options.update_device = job.optimizer.device;
  options.clipping = job.optimizer.clipping;
  options.no_decay_patterns = job.optimizer.no_decay;
  options.keep_gradients = job.memory.keep_gradients;
  options.snapshot = job.checkpoint.saves_on_the_way() && job.checkpoint.asynchronous;
  return options;
}

std::string AdmittedText(const JobPlan& plan) {
  const int64_t host_bytes = plan.train.memory.host_bytes;
  return absl::StrCat(
      "needs ", FormatBytes(plan.arena_bytes), " per rank",
      plan.budget.bytes == kNoBudget ? "" : absl::StrCat(", budget ", FormatBytes(plan.budget.bytes)),
      host_bytes == 0 ? "" : absl::StrCat(", and offloads ", FormatBytes(host_bytes), " to host memory"));
}

int64_t JobPlan::generate_peak_bytes() const {
  int64_t largest = 0;
  for (const PlannedProgram& program : generate) largest = std::max(largest, program.memory.peak_bytes);
  return largest;
}

const Variant& JobPlan::chosen() const {
  const auto is_chosen = [this](const Variant& c) { return c.accumulation == options.accumulation; };
  return *std::find_if(candidates.begin(), candidates.end(), is_chosen);
}

namespace {

// Derives the waits between the streams of all programs, proves them, and plans what else the job needs. Takes the
// graphs of `draft`, which must be those of no other draft that is still used.
absl::StatusOr<JobPlan> PlanOf(Draft draft, const Ops& ops, const WorkLimits& limits) {
  JobPlan plan;
  plan.accumulation_reason = Reason(draft);
  SHALE_RETURN_IF_ERROR(TakeAmpleScratch(draft, ops));
  plan.candidates = std::move(draft.candidates);
  plan.options = std::move(draft.options);
  plan.budget = std::move(draft.budget);
  plan.arena_bytes = draft.cost.arena_bytes;
  std::vector<ProgramAndPlan> users;
  const auto finish = [&](PlannedProgram& program, ModelGraph& graph, PlannedStep& planned) {
    program = {std::move(graph), std::move(planned.step), std::move(planned.memory)};
    users.push_back({program.step.program, program.memory});
    return Finish(program, limits);
  };
  JobGraphs& graphs = *draft.graphs;
  SHALE_RETURN_IF_ERROR(finish(plan.train, graphs.train, draft.train));
  SHALE_RETURN_IF_ERROR(finish(plan.evaluate, graphs.evaluate, draft.evaluate));
  plan.generate.resize(draft.generate.size());
  for (size_t i = 0; i < draft.generate.size(); ++i) {
    SHALE_RETURN_IF_ERROR(finish(plan.generate[i], graphs.generate[i], draft.generate[i]));
  }
  if (plan.options.snapshot) {
    ModelGraph graph = plan.train.graph;
    PlannedStep planned;
    SHALE_ASSIGN_OR_RETURN(planned.step, CompileSnapshot(graph, plan.options, ops));
    SHALE_ASSIGN_OR_RETURN(planned.memory, PlanMemory(planned.step.program, {}));
    SHALE_RETURN_IF_ERROR(finish(plan.snapshot.emplace(), graph, planned));
  }
  plan.host_memory = PlanHostMemory(users, kStagingBytes);
  return plan;
}

}  // namespace

absl::StatusOr<JobPlan> PlanJob(const Job& job, const Machine& machine, const WorkLimits& limits, Refusal* refusal,
                                const JobWith& job_with) {
  Drafter drafter(job, machine, limits, job_with);
  SHALE_ASSIGN_OR_RETURN(Draft draft, drafter.Compile());
  if (draft.fits) return PlanOf(std::move(draft), drafter.OpsOf(job.sharding.ranks), limits);
  SHALE_ASSIGN_OR_RETURN(Refusal found, RefusalOf(drafter, draft, limits));
  const absl::Status status = absl::ResourceExhaustedError(RefusalText(found));
  if (refusal != nullptr) *refusal = std::move(found);
  return status;
}

absl::StatusOr<JobPlan> PlanJobOfAnySize(const Job& job, const Machine& machine, std::optional<Refusal>& refusal,
                                         const JobWith& job_with) {
  refusal.reset();
  const WorkLimits no_limits;
  Drafter drafter(job, machine, no_limits, job_with);
  SHALE_ASSIGN_OR_RETURN(Draft draft, drafter.Compile());
  if (!draft.fits) {
    SHALE_ASSIGN_OR_RETURN(refusal, RefusalOf(drafter, draft, no_limits));
  }
  return PlanOf(std::move(draft), drafter.OpsOf(job.sharding.ranks), no_limits);
}

absl::StatusOr<std::vector<PlannedProgram>> PlanGeneration(const Job& job, const StepOptions& options,
                                                           const GenerationSize& size, const Ops& ops) {
  StepOptions compiled = options;
  compiled.micro_batches = 1;
  SHALE_ASSIGN_OR_RETURN(std::vector<ModelGraph> graphs, BuildGeneration(job, size));
  std::vector<PlannedProgram> programs;
  for (ModelGraph& graph : graphs) {
    SHALE_ASSIGN_OR_RETURN(PlannedStep planned, CompileAndPlan(graph, compiled, ops));
    programs.push_back({std::move(graph), std::move(planned.step), std::move(planned.memory)});
    SHALE_RETURN_IF_ERROR(Finish(programs.back()));
  }
  return programs;
}

absl::StatusOr<PlannedProgram> PlanProgram(const Job& job, const StepOptions& options, GraphMode mode, const Ops& ops,
                                           const MemoryPlanOptions& memory_options) {
  StepOptions compiled = options;
  if (mode == GraphMode::kLogits) compiled.micro_batches = 1;
  PlannedProgram program;
  SHALE_ASSIGN_OR_RETURN(program.graph, BuildGraph(job, mode));
  SHALE_ASSIGN_OR_RETURN(PlannedStep planned, CompileAndPlan(program.graph, compiled, ops, memory_options));
  program.step = std::move(planned.step);
  program.memory = std::move(planned.memory);
  SHALE_RETURN_IF_ERROR(Finish(program));
  return program;
}

}  // namespace shale
