#include "engine/planner/explain.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/memory/report.h"
#include "engine/planner/text.h"
#include "engine/planner/trial.h"
#include "engine/step/combination.h"

namespace shale {
namespace {

using Rows = std::vector<std::vector<std::string>>;

// The cost of one alternative.
struct Cost {
  StepOptions options;
  int64_t bytes = 0;
  int64_t sent_bytes = 0;
  int64_t host_bytes = 0, offloaded_bytes = 0;
  FlopsSummary flops;
  std::array<int64_t, kBufferCategories> at_peak = {};
};

// Returns "saves 1.2 GiB", "adds 1.2 GiB" or "the same".
std::string Difference(int64_t bytes, int64_t than) {
  if (bytes == than) return "the same";
  return bytes < than ? absl::StrCat("saves ", FormatBytes(than - bytes))
                      : absl::StrCat("adds ", FormatBytes(bytes - than));
}

class Explainer {
 public:
  Explainer(const Job& job, const JobPlan& plan, const Ops& ops) : job_(job), plan_(plan), ops_(ops) {}

  absl::StatusOr<std::string> Explain() {
    SHALE_ASSIGN_OR_RETURN(own_, CostOf(plan_.options));
    std::string text = WhereBytesGo();
    SHALE_ASSIGN_OR_RETURN(const std::string micro_batches, MicroBatches());
    SHALE_ASSIGN_OR_RETURN(const std::string checkpointing, Checkpointing());
    SHALE_ASSIGN_OR_RETURN(const std::string offload, Offload());
    absl::StrAppend(&text, micro_batches, Update(), checkpointing, offload, NoSync(), Strategies());
    return text;
  }

 private:
  int64_t ranks() const { return plan_.options.mesh.ranks(); }

  absl::StatusOr<Cost> CostOf(const StepOptions& options) const {
    SHALE_ASSIGN_OR_RETURN(Choice choice,
                           ChooseAccumulation(plan_.train.graph, plan_.evaluate.graph, options, plan_.budget, ops_));
    const PlannedStep& train = choice.trial.train;
    return Cost{choice.options,
                choice.trial.arena_bytes(),
                choice.communication.sent_bytes,
                train.memory.host_bytes,
                SummarizeOffload(train.step.program).offloaded_bytes,
                SummarizeFlops(train.step.program),
                train.memory.bytes_at_peak};
  }

  std::string DescribeLoss() const {
    const int64_t of_sequence = plan_.train.graph.last_target_only ? 1 : job_.batch.sequence_length;
    const int64_t rows = job_.batch.micro_batch * of_sequence, chunk = LossChunkTokens(job_);
    if (chunk >= rows) return absl::StrCat("the head: logits of the ", rows, " tokens of a micro-batch");
    return absl::StrCat("the head: logits of ", chunk, " tokens at a time, never of all");
  }

  // Returns "9.42 GiB" or "9.42 GiB + 12.2 GiB of host".
  static std::string Needs(const Cost& cost) {
    return absl::StrCat(FormatBytes(cost.bytes),
                        cost.host_bytes > 0 ? absl::StrCat(" + ", FormatBytes(cost.host_bytes), " of host") : "");
  }

  std::string Fits(const Cost& cost) const {
    return plan_.budget.Holds(cost.bytes, cost.host_bytes) ? "" : "does not fit";
  }

  // Returns the end of a sentence: for how many micro-batches tensors are kept, and whether some are offloaded.
  std::string PerMicroBatch() const {
    const StepOptions& o = plan_.options;
    if (o.accumulation != Accumulation::kLayered) return own_.host_bytes > 0 ? ", but for what is offloaded" : "";
    return absl::StrCat(", for each of ", o.micro_batches, " micro-batches",
                        own_.host_bytes > 0 ? " but for what is offloaded" : "");
  }

  // Returns "AdamW's m (f32), v (f32)".
  static std::string DescribeStates(const Optimizer& optimizer) {
    const auto state = [](std::string* out, const UpdateState& s) {
      absl::StrAppend(out, s.name, " (", ToString(s.dtype),
                      s.block > 1 ? absl::StrCat(", one for ", Plural(s.block, "element")) : "", ")");
    };
    return absl::StrCat(EntryOf(optimizer.kind).description, "'s ", absl::StrJoin(optimizer.states(), ", ", state));
  }

  // Returns why a category has the bytes that it has.
  std::string Reason(BufferCategory category) const {
    const StepOptions& o = plan_.options;
    const bool shared = ranks() > 1;
    const std::string mine = shared ? absl::StrCat("of this rank's 1/", ranks()) : "of all parameters";
    switch (category) {
      case BufferCategory::kParameterShards:
        return absl::StrCat("weights ", o.placement().gathers_for_use() ? mine : "of the whole model, on every rank");
      case BufferCategory::kMasterWeights:
        return absl::StrCat("the bits of a weight beyond bf16, ",
                            o.placement().state == Part::kFull && shared ? "of all" : mine);
      case BufferCategory::kOptimizerState:
        return absl::StrCat(DescribeStates(o.optimizer), ", ",
                            o.placement().state == Part::kFull && shared ? "of all" : mine);
      case BufferCategory::kGradientShards: return absl::StrCat("fp32, where gradients accumulate, ", mine);
      case BufferCategory::kUnshardedGradients:
        return o.placement().reduces_full_gradients() ? "fp32, of the whole model, until they are reduced once a step"
                                                      : "fp32, of the unit in backward and the one being reduced";
      case BufferCategory::kGatheredParameters:
        return o.reshard_after_forward ? absl::StrCat("the unit in use and ", Plural(o.prefetch, "unit"), " ahead")
                                       : "all units, kept from forward to backward";
      case BufferCategory::kActivations:
        return absl::StrCat("kept from forward to backward under ", ToString(o.activations.preset), PerMicroBatch());
      case BufferCategory::kActivationBoundaries:
        return absl::StrCat("inputs of units and their gradients", PerMicroBatch());
      case BufferCategory::kWorkspace: return "freed when the unit's forward or backward ends";
      case BufferCategory::kLossWorkspace: return DescribeLoss();
      case BufferCategory::kLibraryWorkspace:
        return absl::StrCat("scratch of the kernels", PacksOnce(plan_.train.step.program)
                                                          ? ", and a unit's weights, packed for all micro-batches"
                                                          : "");
      case BufferCategory::kData: return "tokens of one micro-batch and the scalars of the step";
      case BufferCategory::kSnapshot:
        return "a copy of what a checkpoint saves, so that steps go on while it is written; "
               "checkpoint.asynchronous=false avoids it";
    }
    return "";
  }

  std::string WhereBytesGo() const {
    Rows rows;
    std::vector<std::pair<int64_t, int>> sorted;
    int64_t total = 0;
    for (int c = 0; c < kBufferCategories; ++c) {
      sorted.push_back({-own_.at_peak[c], c});
      total += own_.at_peak[c];
    }
    std::sort(sorted.begin(), sorted.end());
    for (const auto& [negative, c] : sorted) {
      if (negative == 0) continue;
      const auto category = static_cast<BufferCategory>(c);
      rows.push_back({std::string(ToString(category)), FormatBytes(-negative),
                      Percent(static_cast<double>(-negative), static_cast<double>(total)), Reason(category)});
    }
    return absl::StrCat("Where every byte goes\n",
                        Paragraph(absl::StrCat("At the peak of training one rank uses ", FormatBytes(total),
                                               ". The arena, ", FormatBytes(plan_.arena_bytes),
                                               ", holds every buffer of the step; those that are not alive at the "
                                               "same time share bytes.")),
                        Table(rows), "\n");
  }

  absl::StatusOr<std::string> MicroBatches() const {
    const int64_t k = plan_.options.micro_batches;
    StepOptions other = plan_.options;
    other.micro_batches = k > 1 ? 1 : 4;
    SHALE_ASSIGN_OR_RETURN(const Cost cost, CostOf(other));
    const Cost& many = k > 1 ? own_ : cost;
    const Cost& one = k > 1 ? cost : own_;
    std::string text = absl::StrCat("With K = ", many.options.micro_batches, " micro-batches a step one rank needs ",
                                    FormatBytes(many.bytes), ", with one ", FormatBytes(one.bytes), ": ");
    if (many.bytes == one.bytes) {
      absl::StrAppend(&text,
                      "accumulating adds nothing. One micro-batch after the other uses the same activations, and "
                      "gradients add up in a buffer that a single micro-batch has too.");
    } else if (many.bytes > one.bytes) {
      absl::StrAppend(
          &text, "accumulating adds ", FormatBytes(many.bytes - one.bytes),
          ". LAYERED runs all micro-batches through a unit before the next unit, so the tensors that backward needs "
          "are kept for each of them; in return, gathers and reductions happen once per step. A stronger preset of "
          "activation checkpointing "
          "reduces the cost.");
      if (PacksOnce(plan_.train.step.program))
        absl::StrAppend(&text, " A unit's weights, kept packed, are part of it.");
    } else if (many.host_bytes > one.host_bytes) {
      absl::StrAppend(&text, "accumulating adds nothing to the arena.");
    } else {
      absl::StrAppend(&text, "the buffers happen to pack more tightly, by ", FormatBytes(one.bytes - many.bytes), ".");
    }
    if (many.host_bytes > one.host_bytes) {
      absl::StrAppend(&text, " In host memory it adds ", FormatBytes(many.host_bytes - one.host_bytes),
                      ", where what is offloaded waits.");
    }
    return absl::StrCat("What K micro-batches add", k > 1 ? "" : " (this job has K = 1; K = 4 was compiled to compare)",
                        "\n", Paragraph(text), "\n");
  }

  std::string Update() const {
    const UpdateMemory memory = MeasureUpdate(plan_.train.step.program);
    const int64_t added = std::max<int64_t>(0, memory.update_bytes - memory.elsewhere_bytes);
    std::string text =
        absl::StrCat("While ", EntryOf(plan_.options.optimizer.kind).description, " runs, ",
                     FormatBytes(memory.update_bytes), " are in use; before it, at most ",
                     FormatBytes(memory.elsewhere_bytes), ". It adds ", added == 0 ? "nothing" : FormatBytes(added),
                     ". It updates weights, masters and states in place, in one pass over the shard, from "
                     "gradients that are there already, and the clipping factor is a scalar: no copy of "
                     "anything the size of the model is made, in the first step or later.");
    return absl::StrCat("What the optimizer step adds\n", Paragraph(text), "\n");
  }

  absl::StatusOr<std::string> Checkpointing() const {
    Rows rows = {{"preset", "needs", "against NONE", "recomputed", ""}};
    int64_t keep_all = 0;
    for (CheckpointingPreset preset :
         {CheckpointingPreset::kNone, CheckpointingPreset::kCheap, CheckpointingPreset::kAttention,
          CheckpointingPreset::kFeedForward, CheckpointingPreset::kSublayers, CheckpointingPreset::kBlock}) {
      StepOptions options = plan_.options;
      options.activations.preset = preset;
      SHALE_ASSIGN_OR_RETURN(const Cost cost, CostOf(options));
      if (preset == CheckpointingPreset::kNone) keep_all = cost.bytes;
      rows.push_back({std::string(ToString(preset)), Needs(cost), Difference(cost.bytes, keep_all),
                      absl::StrCat(FormatFlops(cost.flops.recompute), " (",
                                   Percent(cost.flops.recompute, cost.flops.forward + cost.flops.backward), ")"),
                      preset == plan_.options.activations.preset ? "this job" : Fits(cost)});
    }
    return absl::StrCat(
        "What each preset of activation checkpointing saves and costs\n",
        Paragraph(absl::StrCat(
            "Tensors that are not kept are recomputed in backward, from tensors that are kept and with the "
            "same bits. The last number is what one rank recomputes in a step, relative to forward and backward (",
            FormatFlops(own_.flops.forward + own_.flops.backward),
            "). Matmuls and attention count; norms and activation functions only move bytes.")),
        Table(rows), "\n");
  }

  absl::StatusOr<std::string> Offload() const {
    if (job_.runtime.device == DeviceType::kCpu) return "";  // A CPU's arena is in host memory already.
    const std::vector<std::string> kAll = {"*"};
    Rows rows = {{"preset", "needs", "against this job", "in host memory", "a step moves there", ""}};
    for (CheckpointingPreset preset : {CheckpointingPreset::kNone, CheckpointingPreset::kCheap,
                                       CheckpointingPreset::kSublayers, CheckpointingPreset::kBlock}) {
      StepOptions options = plan_.options;
      const bool own = preset == options.activations.preset && options.activations.offload == kAll;
      options.activations.preset = preset;
      options.activations.offload = kAll;
      SHALE_ASSIGN_OR_RETURN(const Cost cost, CostOf(options));
      rows.push_back({std::string(ToString(preset)), FormatBytes(cost.bytes), Difference(cost.bytes, own_.bytes),
                      FormatBytes(cost.host_bytes), FormatBytes(cost.offloaded_bytes), own ? "this job" : Fits(cost)});
    }
    return absl::StrCat(
        "What memory.offload=* would save and move\n",
        Paragraph("The tensors that are kept wait for backward in pinned host memory. A step moves the last "
                  "number of bytes there, and moves back those that backward reads, on a stream of its own beside "
                  "the arithmetic; this costs time if the link to the host takes longer than the arithmetic."),
        Table(rows), "\n");
  }

  // Describes no_sync of other trainers, which is accumulation NO_SYNC here. ZERO2 has no NO_SYNC: strategy ZERO1
  // takes its place.
  std::string NoSync() const {
    const std::string title = "What accumulating without synchronization (no_sync) would cost\n";
    if (ranks() == 1) {
      return absl::StrCat(title, Paragraph("Nothing: there is one rank."), "\n");
    }
    Rows rows = {{"accumulation", "needs", "against this job", "one rank sends", ""}};
    Cost deferred;
    for (Accumulation accumulation : {Accumulation::kSharded, Accumulation::kNoSync, Accumulation::kLayered}) {
      StepOptions options = plan_.options;
      options.accumulation = accumulation;
      if (accumulation == Accumulation::kNoSync && options.strategy == Strategy::kZero2) {
        options.strategy = Strategy::kZero1;
      }
      std::string name(ToString(accumulation));
      if (options.strategy != plan_.options.strategy) absl::StrAppend(&name, " with strategy ZERO1");
      const absl::StatusOr<Cost> cost = CostOf(options);
      if (!cost.ok()) {
        rows.push_back({name, "-", "-", "-",
                        CheckCombination(options.strategy, accumulation).ok()
                            ? "too large"
                            : absl::StrCat("not with ", ToString(options.strategy))});
        continue;
      }
      if (accumulation == Accumulation::kNoSync) deferred = *cost;
      rows.push_back({name, Needs(*cost), Difference(cost->bytes, own_.bytes), FormatBytes(cost->sent_bytes),
                      accumulation == plan_.options.accumulation ? "this job" : Fits(*cost)});
    }
    const double parameters = static_cast<double>(CountParameters(plan_.train.graph));
    std::string text =
        absl::StrCat("Skipping the reduction until the last micro-batch means holding the gradients of all ",
                     WithCommas(static_cast<int64_t>(parameters)), " parameters in fp32 on every rank, ",
                     FormatBytes(static_cast<int64_t>(std::min(4 * parameters, 0x1p62))), ", not 1/", ranks(),
                     " of them. Here that is accumulation NO_SYNC: ");
    if (deferred.bytes == 0) {
      absl::StrAppend(&text, "it is too large to be planned.");
    } else {
      absl::StrAppend(&text, "it needs ", FormatBytes(deferred.bytes), " and sends ", FormatBytes(deferred.sent_bytes),
                      " a step, this job's ", FormatBytes(own_.bytes), " and ", FormatBytes(own_.sent_bytes), ".");
    }
    if (plan_.options.micro_batches == 1) absl::StrAppend(&text, " With one micro-batch a step it saves no reduction.");
    return absl::StrCat(title, Paragraph(text), Table(rows), "\n");
  }

  std::string Strategies() const {
    if (ranks() == 1) return "";
    Rows rows = {{"strategy", "accumulation", "needs", "against this job", "one rank sends", ""}};
    for (Strategy strategy : {Strategy::kDdp, Strategy::kZero1, Strategy::kZero2, Strategy::kFullShard}) {
      StepOptions options = plan_.options;
      if (strategy != options.strategy) options.accumulation = Accumulation::kAuto;
      options.strategy = strategy;
      const absl::StatusOr<Cost> cost = CostOf(options);
      if (!cost.ok()) {
        rows.push_back({std::string(ToString(strategy)), "-", "-", "-", "-", "too large"});
        continue;
      }
      rows.push_back({std::string(ToString(strategy)), std::string(ToString(cost->options.accumulation)), Needs(*cost),
                      Difference(cost->bytes, own_.bytes), FormatBytes(cost->sent_bytes),
                      strategy == plan_.options.strategy ? "this job" : Fits(*cost)});
    }
    return absl::StrCat("What other strategies would need\n",
                        Paragraph("Each with the accumulation that AUTO would take under this budget."), Table(rows),
                        "\n");
  }

  const Job& job_;
  const JobPlan& plan_;
  const Ops& ops_;
  Cost own_;
};

}  // namespace

absl::StatusOr<std::string> ExplainText(const Job& job, const JobPlan& plan, const Ops& ops) {
  return Explainer(job, plan, ops).Explain();
}

}  // namespace shale
