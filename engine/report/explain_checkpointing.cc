#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/report/explain_sections.h"
#include "engine/step/segments.h"
#include "engine/text/layout.h"
#include "engine/text/numbers.h"
#include "kernels/check.h"

namespace shale {
namespace {

// A preset, and the number of blocks in a segment.
struct Kind {
  CheckpointingPreset preset = CheckpointingPreset::kNone;
  int64_t segment_blocks = 1;
  bool operator==(const Kind&) const = default;
};

// Returns the kinds to compare, without duplicates: first all presets, NONE at the front. If the chosen blocks can form
// segments, adds NONE in segments of 2; NONE and BLOCK in segments of the sizes that SQRT chooses and that the job has;
// and the job's preset in segments of the job's size.
std::vector<Kind> KindsOf(const ActivationOptions& activations, int64_t layers) {
  std::vector<Kind> kinds;
  const auto add = [&](const Kind& kind) {
    if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(kind);
  };
  for (CheckpointingPreset preset :
       {CheckpointingPreset::kNone, CheckpointingPreset::kCheap, CheckpointingPreset::kAttention,
        CheckpointingPreset::kFeedForward, CheckpointingPreset::kSublayers, CheckpointingPreset::kBlock}) {
    add({preset});
  }
  const ChosenBlocks chosen = activations.Chosen(layers);
  if (chosen.LongestRun() < 2) return kinds;
  add({CheckpointingPreset::kNone, 2});
  for (CheckpointingPreset preset : {CheckpointingPreset::kNone, CheckpointingPreset::kBlock}) {
    add({preset, SqrtSegmentBlocks(chosen)});
    add({preset, activations.segment_blocks});
  }
  add({activations.preset, activations.segment_blocks});
  return kinds;
}

}  // namespace

absl::StatusOr<std::string> ExplainCheckpointing(const Alternatives& alternatives) {
  const JobPlan& plan = alternatives.plan();
  const Cost& own = alternatives.own();
  const ActivationOptions& activations = plan.options.activations;
  std::vector<std::vector<std::string>> rows = {
      {"preset", "needs", "against NONE", "activations", "x NONE", "recomputed", "gathers more", ""}};
  Cost keep_all;
  for (const Kind& kind : KindsOf(activations, Layers(alternatives.job().model))) {
    StepOptions options = plan.options;
    options.activations.preset = kind.preset;
    options.activations.segment_blocks = kind.segment_blocks;
    SHALE_ASSIGN_OR_RETURN(const Cost cost, alternatives.CostOf(options));
    if (rows.size() == 1) keep_all = cost;
    const bool of_job = kind == Kind{activations.preset, activations.segment_blocks};
    rows.push_back({absl::StrCat(ToString(kind.preset), kind.segment_blocks > 1 ? ", segments of " : "",
                                 kind.segment_blocks > 1 ? WithCommas(kind.segment_blocks) : ""),
                    Needs(cost), Difference(cost.bytes, keep_all.bytes), FormatBytes(cost.activation_bytes),
                    absl::StrFormat("%.3f", static_cast<double>(cost.activation_bytes) /
                                                static_cast<double>(keep_all.activation_bytes)),
                    absl::StrCat(FormatFlops(cost.flops.recompute), " (",
                                 Percent(cost.flops.recompute, cost.flops.forward + cost.flops.backward), ")"),
                    WithCommas(cost.gathers - keep_all.gathers), of_job ? "this job" : alternatives.Fits(cost)});
  }
  return absl::StrCat(
      "What each preset of activation checkpointing saves and costs\n",
      Paragraph(absl::StrCat(
          "Tensors that are not kept are recomputed in backward, from tensors that are kept and with the "
          "same bits. Activations are those that wait for backward, and the inputs of units with their gradients, at "
          "the moment when they are most; x NONE is their factor against NONE. Recomputed is what one rank computes "
          "again in a step, relative to forward and backward (",
          FormatFlops(own.flops.forward + own.flops.backward),
          "). Matmuls and attention count; norms and activation functions only move bytes. In segments "
          "(segment_blocks, or segments: SQRT) only the input of a segment's first block waits for backward; before "
          "that, its blocks but the last run forward again, and sharded parameters are gathered for it once more.")),
      Table(rows), "\n");
}

absl::StatusOr<std::string> ExplainOffload(const Alternatives& alternatives) {
  if (alternatives.job().runtime.device == DeviceType::kCpu) return "";  // A CPU's arena is in host memory already.
  const std::vector<std::string> kAll = {"*"};
  std::vector<std::vector<std::string>> rows = {
      {"preset", "needs", "against this job", "in host memory", "a step moves there", ""}};
  for (CheckpointingPreset preset : {CheckpointingPreset::kNone, CheckpointingPreset::kCheap,
                                     CheckpointingPreset::kSublayers, CheckpointingPreset::kBlock}) {
    StepOptions options = alternatives.plan().options;
    const bool own = preset == options.activations.preset && options.activations.offload == kAll;
    options.activations.preset = preset;
    options.activations.offload = kAll;
    SHALE_ASSIGN_OR_RETURN(const Cost cost, alternatives.CostOf(options));
    rows.push_back({std::string(ToString(preset)), FormatBytes(cost.bytes),
                    Difference(cost.bytes, alternatives.own().bytes), FormatBytes(cost.host_bytes),
                    FormatBytes(cost.offloaded_bytes), own ? "this job" : alternatives.Fits(cost)});
  }
  return absl::StrCat(
      "What memory.offload=* would save and move\n",
      Paragraph("The tensors that are kept wait for backward in pinned host memory. A step moves the last "
                "number of bytes there, and moves back those that backward reads, on a stream of its own beside "
                "the arithmetic; this costs time if the link to the host takes longer than the arithmetic."),
      Table(rows), "\n");
}

absl::StatusOr<std::string> ExplainStateOffload(const Alternatives& alternatives) {
  if (alternatives.job().runtime.device == DeviceType::kCpu) return "";  // A CPU's arena is in host memory already.
  const StepOptions& own = alternatives.plan().options;
  StepOptions options = own;
  options.offload_state = {};
  options.update_device = UpdateDevice::kSame;
  std::vector<std::vector<std::string>> rows = {
      {"parts", "needs", "against this job", "in host memory", "a step moves", ""}};
  const auto add_row = [&](const std::string& name) -> absl::Status {
    SHALE_ASSIGN_OR_RETURN(const Cost cost, alternatives.CostOf(options));
    const bool is_own = options.offload_state == own.offload_state && options.update_device == own.update_device;
    rows.push_back({name, FormatBytes(cost.bytes), Difference(cost.bytes, alternatives.own().bytes),
                    FormatBytes(cost.host_bytes), FormatBytes(cost.state_moved_bytes),
                    is_own ? "this job" : alternatives.Fits(cost)});
    return absl::OkStatus();
  };
  const auto add = [&](bool exists, bool StateOffload::*part) -> absl::Status {
    if (!exists) return absl::OkStatus();
    options.offload_state.*part = true;
    return add_row(ToString(options.offload_state));
  };
  SHALE_RETURN_IF_ERROR(add(!own.optimizer.states().empty(), &StateOffload::moments));
  SHALE_RETURN_IF_ERROR(add(alternatives.job().precision.has_masters(), &StateOffload::masters));
  SHALE_RETURN_IF_ERROR(add(own.strategy == Strategy::kFullShard, &StateOffload::parameters));
  if (alternatives.can_update_on_host()) {
    options.update_device = UpdateDevice::kHost;
    options.offload_state = {};
    SHALE_RETURN_IF_ERROR(add_row("update on the HOST"));
    options.offload_state.parameters = own.strategy == Strategy::kFullShard;
    if (options.offload_state.parameters) SHALE_RETURN_IF_ERROR(add_row("the same, PARAMETERS"));
  }
  if (rows.size() == 1) return "";
  return absl::StrCat(
      "What memory.offload_state and optimizer.device=HOST would save and move\n",
      Paragraph(
          "The named parts of the state lie in pinned host memory. The arena holds the moments and masters of two "
          "units at most: while one is updated, those of the next are copied in and those of the one before are "
          "copied back. PARAMETERS are copied in before each gather too. A step moves the last number of bytes, "
          "both ways together; this costs time if the link to the host takes longer than the arithmetic. With "
          "optimizer.device=HOST the moments and masters never leave host memory: gradients go there, weights come "
          "back, and the CPUs update, which costs the time that they need to read and write the state."),
      Table(rows), "\n");
}

}  // namespace shale
