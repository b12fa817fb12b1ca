#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/compile/graph/storage.h"
#include "engine/plan/planner/summary.h"
#include "engine/plan/report/explain_sections.h"
#include "engine/strings/printing.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/flat.h"

namespace shale {
namespace {

// Returns which weights are there in another form than they are stored in.
std::string DescribeWidened(const Explained& x, const JobPlan& plan) {
  std::vector<std::string> parts;
  if (x.job.optimizer.frozen_weights != Storage::kAsUsed) {
    parts.push_back(absl::StrCat("the frozen weights of the unit in use, from ",
                                 ToString(x.job.optimizer.frozen_weights), " to ",
                                 ToString(DTypeOf(x.job.precision.compute)), ", until its forward or backward ends"));
  }
  const bool gathers = GathersFloat8(plan.train.step.program);
  if (gathers) parts.push_back("this rank's shard of the weights of matmuls in fp8, which is gathered in that form");
  if (QuantizesOnce(plan.train.step.program)) {
    parts.push_back(absl::StrCat(plan.options.accumulation == Accumulation::kLayered ? "a unit's" : "all",
                                 " weights of matmuls in fp8, ", gathers ? "transposed" : "quantized",
                                 " once for all micro-batches"));
  }
  return absl::StrJoin(parts, "; ");
}

// Returns which logits the head holds at once, or that it has none.
std::string DescribeLoss(const Job& job, const JobPlan& plan) {
  const int64_t of_sequence = plan.train.graph.last_target_only ? 1 : job.batch.sequence_length;
  const int64_t rows = job.batch.micro_batch * of_sequence, chunk = LossChunkTokens(job);
  if (PredictsValues(plan.train.graph))
    return absl::StrCat("the head: predictions and losses of the ", rows, " targets of a micro-batch");
  const absl::string_view wide = job.precision.fp32_logits ? "fp32 logits, and their rounded gradient," : "logits";
  if (chunk >= rows) return absl::StrCat("the head: ", wide, " of the ", rows, " tokens of a micro-batch");
  return absl::StrCat("the head: ", wide, " of ", chunk, " tokens at a time, never of all");
}

// Returns the end of a sentence: for how many micro-batches tensors are kept, and whether some are offloaded.
std::string PerMicroBatch(const Explained& x) {
  const StepOptions& o = x.plan.options;
  const bool offloads = x.own.cost.host_bytes > 0;
  if (o.accumulation != Accumulation::kLayered) return offloads ? ", but for what is offloaded" : "";
  return absl::StrCat(", for each of ", WithCommas(o.micro_batches), " micro-batches",
                      offloads ? " but for what is offloaded" : "");
}

std::string DescribeStatesOf(const Optimizer& optimizer) {
  const auto state = [](std::string* out, const UpdateState& s) {
    const bool factors = s.extent == StateExtent::kRowsAndColumns;
    absl::StrAppend(out, s.name, factors ? " of rows and columns" : "", " (", ToString(s.dtype),
                    s.block > 1 ? absl::StrCat(", one for ", Plural(s.block, "element")) : "", ")");
  };
  return absl::StrCat(EntryOf(optimizer.kind).description, "'s ", absl::StrJoin(optimizer.states(), ", ", state));
}

// Returns "AdamW's m (f32), v (f32)"; empty if no optimizer that updates a parameter has states.
std::string DescribeStates(const JobPlan& plan) {
  std::vector<std::string> texts;
  for (const OptimizerInUse& one : OptimizersInUse(plan.train.step.state)) {
    const Optimizer& optimizer = one.In(plan.options);
    const std::string where = one.group < 0 ? "" : absl::StrCat(" of optimizer.groups[", one.group, "]");
    if (!optimizer.states().empty()) texts.push_back(absl::StrCat(DescribeStatesOf(optimizer), where));
  }
  return absl::StrJoin(texts, "; ");
}

// Returns whether inputs of matmuls in fp8 wait for backward in that form. Most presets of activation checkpointing
// compute them again, and frozen weights need none.
bool KeepsFloat8(const StepProgram& program) {
  return std::any_of(program.buffers.begin(), program.buffers.end(), [](const Buffer& buffer) {
    return buffer.category == BufferCategory::kActivations && absl::StrContains(buffer.name, ".fp8");
  });
}

// Returns of which units there are gradients that are not sharded, and in which dtype.
std::string DescribeUnitGradients(const StepProgram& program) {
  bool rounds = false, rounds_early = false;  // To bf16, for sending; early: before the backward of the unit ends.
  for (const Instruction& instruction : program.instructions) {
    const Op* op = std::get_if<Op>(&instruction.action);
    const Accumulate* rounding = op == nullptr ? nullptr : op->As<Accumulate>();
    if (rounding == nullptr || !rounding->by_rank) continue;
    rounds = true;
    rounds_early |= instruction.phase != Phase::kReduce;  // By RoundInBackward (engine/compile/step/passes.h).
  }
  if (!rounds) return "fp32, of the unit in backward and the one being reduced";
  constexpr absl::string_view kReceived = ", with a part of what others send";
  if (!rounds_early) {
    return absl::StrCat("fp32, of the unit in backward, and bf16, of the one being reduced", kReceived);
  }
  return absl::StrCat("bf16, of the unit in backward and the one being reduced", kReceived,
                      "; fp32, of what is not complete");
}

// Returns why a category has the bytes that it has.
std::string Reason(const Explained& x, BufferCategory category) {
  const JobPlan& plan = x.plan;
  const StepOptions& o = plan.options;
  const int64_t shards = o.mesh.shard;
  const bool shared = shards > 1;
  const std::vector<Parameter>& parameters = plan.train.graph.parameters;
  const bool some_frozen = std::any_of(parameters.begin(), parameters.end(), [](const auto& p) { return p.frozen; });
  const std::string all = some_frozen ? "of all parameters that train" : "of all parameters";
  const std::string part = absl::StrCat("of this rank's 1/", WithCommas(shards)), mine = shared ? part : all;
  switch (category) {
    case BufferCategory::kParameterShards:
      return absl::StrCat("weights ", o.placement().gathers_for_use() ? mine : absl::StrCat(all, ", on every rank"));
    case BufferCategory::kFrozenParameters:
      return absl::StrCat("weights that do not train, so that they have no gradient, master or optimizer state, ",
                          RowOf(x.job.optimizer.frozen_weights).text,
                          x.job.optimizer.frozen_weights == Storage::kAsUsed ? "" : ", ",
                          o.placement().gathers_for_use() && shared ? part : "all on every rank");
    case BufferCategory::kMasterWeights:
      return absl::StrCat("the bits of a weight beyond ", ToString(DTypeOf(x.job.precision.compute)), ", ",
                          shared && o.placement().state == Part::kFull ? all : mine);
    case BufferCategory::kOptimizerState:
      if (DescribeStates(plan).empty()) {
        return absl::StrCat("the count of updates: ", RulesInUse(plan), " keeps nothing else");
      }
      return absl::StrCat(DescribeStates(plan), ", ", shared && o.placement().state == Part::kFull ? all : mine);
    case BufferCategory::kGradientShards:
      return absl::StrCat(o.gradient_shards == DType::kFloat32 ? "fp32" : "bf16", ", where gradients accumulate, ",
                          mine, o.update == UpdateTime::kInBackward ? ", until a unit is updated" : "");
    case BufferCategory::kUnshardedGradients:
      if (o.placement().reduces_full_gradients()) {
        return absl::StrCat("fp32, ", all, ", until they are reduced once a step");
      }
      return DescribeUnitGradients(plan.train.step.program);
    case BufferCategory::kGatheredParameters:
      return o.reshard_after_forward ? absl::StrCat("the unit in use and ", Plural(o.prefetch, "unit"), " ahead")
                                     : "all units, kept from forward to backward";
    case BufferCategory::kWidenedParameters: return DescribeWidened(x, plan);
    case BufferCategory::kActivations:
      return absl::StrCat("kept from forward to backward under ", ToString(o.activations.preset),
                          KeepsFloat8(plan.train.step.program) ? ", inputs of matmuls in fp8" : "", PerMicroBatch(x));
    case BufferCategory::kActivationBoundaries:
      return absl::StrCat("inputs of units and their gradients", PerMicroBatch(x));
    case BufferCategory::kWorkspace: return "freed when the unit's forward, backward or update ends";
    case BufferCategory::kLossWorkspace: return DescribeLoss(x.job, plan);
    case BufferCategory::kLibraryWorkspace:
      return absl::StrCat("scratch of the kernels", PacksOnce(plan.train.step.program)
                                                        ? ", and a unit's weights, packed for all micro-batches"
                                                        : "");
    case BufferCategory::kData: return "the samples of one micro-batch and the scalars of the step";
    case BufferCategory::kSnapshot:
      return "a copy of what a checkpoint saves, so that steps go on while it is written; "
             "checkpoint.asynchronous=false avoids it";
    case BufferCategory::kCache: return "keys and values of the tokens so far";
  }
  return "";
}

}  // namespace

SectionText ExplainWhereBytesGo(const Explained& x) {
  const auto& at_peak = x.own.train.memory.bytes_at_peak;
  std::vector<std::vector<std::string>> rows;
  std::vector<std::pair<int64_t, int>> sorted;
  int64_t total = 0;
  for (int c = 0; c < kBufferCategories; ++c) {
    sorted.push_back({-at_peak[c], c});
    total += at_peak[c];
  }
  std::sort(sorted.begin(), sorted.end());
  for (const auto& [negative, c] : sorted) {
    if (negative == 0) continue;
    const auto category = static_cast<BufferCategory>(c);
    rows.push_back({std::string(ToString(category)), FormatBytes(-negative),
                    Percent(static_cast<double>(-negative), static_cast<double>(total)), Reason(x, category)});
  }
  return Section("Where every byte goes",
                 absl::StrCat("At the peak of training one rank uses ", FormatBytes(total), ". The arena, ",
                              FormatBytes(x.plan.arena_bytes),
                              ", holds every buffer of the step; those that are not alive at the "
                              "same time share bytes."),
                 Table(rows));
}

SectionText ExplainMatMuls(const Explained& x) {
  if (x.job.precision.matmuls == MatMulPrecision::kAsComputed) return "";
  const bool blockwise = x.job.precision.fp8_scaling == Float8Scaling::kBlockwise;
  const std::vector<ComparedRow> rows = {
      {.name = {"FP8", blockwise ? "BLOCKWISE" : "TENSORWISE"}, .is_own = true},
      {.name = {"FP8", blockwise ? "TENSORWISE" : "BLOCKWISE"},
       .overrides = {{"precision.fp8_scaling", blockwise ? "TENSORWISE" : "BLOCKWISE"}}},
      {.name = {"AS_COMPUTED", ""},
       .overrides = {{"precision.matmuls", ""}, {"precision.fp8_gradients", ""}, {"precision.fp8_scaling", ""}}}};
  return Section(
      "What matmuls in FP8 change",
      absl::StrCat("Backward needs the inputs of linear layers in fp8 alone, with one byte for each element. What a "
                   "norm or an activation function writes is then kept in that form, unless activation checkpointing "
                   "computes it again. The output of attention is kept in both, because the backward of attention "
                   "reads it too. In exchange, the unit in use has its weights, inputs and gradients in fp8 beside "
                   "those in the compute dtype. ",
                   blockwise ? "Every 128 elements of an input have a scale of 4 bytes. Weights are gathered in the "
                               "compute dtype, because blocks of scales cross the bounds of shards."
                             : "Weights that are gathered in fp8 take one byte for each and are not there in the "
                               "compute dtype, but a rank keeps its shard of all of them in fp8 through the step."),
      CompareTable(x, {"precision.matmuls", "precision.fp8_scaling"}, rows,
                   {Needs(), AgainstThisJob(x), Activations()}));
}

namespace {

// The attention of a model's layers, for one micro-batch.
struct Attention {
  int64_t layers = 0;
  Tensor q_BSHD, lse_BHS;  // Of any layer: all layers have the same shape.
};

Attention AttentionOf(const ModelGraph& graph) {
  Attention attention;
  for (const UnitGraph& unit : graph.units) {
    for (const Node& node : unit.forward) {
      const auto* op = node.op.As<AttentionForward>();
      if (op == nullptr) continue;
      ++attention.layers;
      attention.q_BSHD = op->q_BSHD;
      attention.lse_BHS = op->lse_BHS;
    }
  }
  return attention;
}

std::string FormatDouble(double bytes) { return FormatBytes(static_cast<int64_t>(std::min(bytes, 0x1p62))); }

}  // namespace

SectionText ExplainAttention(const Explained& x) {
  const Attention attention = AttentionOf(x.plan.train.graph);
  if (attention.layers == 0) return "";
  const Tensor& q = attention.q_BSHD;
  const int64_t B = q.dim(0), S = q.dim(1), H = q.dim(2);
  const double scores = static_cast<double>(B) * static_cast<double>(H) * static_cast<double>(S) *
                        static_cast<double>(S) * static_cast<double>(SizeOf(q.dtype));
  return Section(
      "What attention does not store",
      absl::StrCat(
          "The scores of one layer, B x H x S x S = ", WithCommas(B), " x ", WithCommas(H), " x ", WithCommas(S), " x ",
          WithCommas(S), " in ", ToString(q.dtype), ", would take ", FormatDouble(scores), " for one micro-batch, and ",
          FormatDouble(scores * static_cast<double>(attention.layers)), " for all ", WithCommas(attention.layers),
          " layers. They are computed in tiles, in forward and once more in backward, and are never stored. Backward "
          "reads the log-sum-exp of each row of scores instead, ",
          FormatBytes(attention.lse_BHS.extent_bytes()), " a layer."));
}

}  // namespace shale
