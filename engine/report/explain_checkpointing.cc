#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/report/explain_sections.h"
#include "engine/text/layout.h"
#include "engine/text/numbers.h"
#include "kernels/check.h"

namespace shale {

absl::StatusOr<std::string> ExplainCheckpointing(const Alternatives& alternatives) {
  const JobPlan& plan = alternatives.plan();
  const Cost& own = alternatives.own();
  std::vector<std::vector<std::string>> rows = {{"preset", "needs", "against NONE", "recomputed", ""}};
  int64_t keep_all = 0;
  for (CheckpointingPreset preset :
       {CheckpointingPreset::kNone, CheckpointingPreset::kCheap, CheckpointingPreset::kAttention,
        CheckpointingPreset::kFeedForward, CheckpointingPreset::kSublayers, CheckpointingPreset::kBlock}) {
    StepOptions options = plan.options;
    options.activations.preset = preset;
    SHALE_ASSIGN_OR_RETURN(const Cost cost, alternatives.CostOf(options));
    if (preset == CheckpointingPreset::kNone) keep_all = cost.bytes;
    rows.push_back({std::string(ToString(preset)), Needs(cost), Difference(cost.bytes, keep_all),
                    absl::StrCat(FormatFlops(cost.flops.recompute), " (",
                                 Percent(cost.flops.recompute, cost.flops.forward + cost.flops.backward), ")"),
                    preset == plan.options.activations.preset ? "this job" : alternatives.Fits(cost)});
  }
  return absl::StrCat(
      "What each preset of activation checkpointing saves and costs\n",
      Paragraph(absl::StrCat(
          "Tensors that are not kept are recomputed in backward, from tensors that are kept and with the "
          "same bits. The last number is what one rank recomputes in a step, relative to forward and backward (",
          FormatFlops(own.flops.forward + own.flops.backward),
          "). Matmuls and attention count; norms and activation functions only move bytes.")),
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

}  // namespace shale
