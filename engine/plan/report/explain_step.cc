#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/plan/planner/options.h"
#include "engine/plan/planner/summary.h"
#include "engine/plan/report/explain_sections.h"
#include "engine/strings/printing.h"
#include "kernels/check.h"

namespace shale {
namespace {

// Returns the settings of an update in backward, with what they need.
Settings UpdateInBackward(const Job& job) {
  for (const Option& option : Options()) {
    if (option.path != "optimizer.update") continue;
    const std::vector<Settings> settings = option.SettingsFor({.job = job});
    if (!settings.empty()) return settings.front();
  }
  return {};
}

}  // namespace

SectionText ExplainMicroBatches(const Explained& x) {
  const JobPlan& plan = x.plan;
  const int64_t k = plan.options.micro_batches;
  // Warm-up and length of the run, which this changes too, take no memory.
  SHALE_ASSIGN_OR_RETURN(
      const Draft other,
      x.drafter.Compile({{"batch.global_batch", absl::StrCat((k > 1 ? 1 : 4) * x.ranks() * x.job.batch.micro_batch)},
                         {"lr_schedule.warmup_samples", ""},
                         {"lr_schedule.warmup_tokens", ""}}));
  const Draft& many_draft = k > 1 ? x.own : other;
  const Cost& many = many_draft.cost;
  const Cost& one = k > 1 ? other.cost : x.own.cost;
  std::string text =
      absl::StrCat("With K = ", WithCommas(many_draft.options.micro_batches), " micro-batches a step one rank needs ",
                   FormatBytes(many.arena_bytes), ", with one ", FormatBytes(one.arena_bytes), ": ");
  if (many.arena_bytes == one.arena_bytes) {
    absl::StrAppend(&text,
                    "accumulating adds nothing. One micro-batch after the other uses the same activations, and "
                    "gradients add up in a buffer that a single micro-batch has too.");
  } else if (many.arena_bytes > one.arena_bytes && many_draft.options.accumulation != Accumulation::kLayered) {
    absl::StrAppend(&text, "the first accumulation adds ", FormatBytes(many.arena_bytes - one.arena_bytes),
                    ", and further micro-batches add nothing. With one micro-batch a gradient exists from its unit's "
                    "backward to the update, and shares bytes with the activations of forward. With several, the "
                    "gradients of a micro-batch must outlive the forward of the next one, to which they add up.");
  } else if (many.arena_bytes > one.arena_bytes) {
    absl::StrAppend(
        &text, "accumulating adds ", FormatBytes(many.arena_bytes - one.arena_bytes),
        ". LAYERED runs all micro-batches through a unit before the next unit, so the tensors that backward needs "
        "are kept for each of them; in return, gathers and reductions happen once per step. A stronger preset of "
        "activation checkpointing reduces the cost.");
    if (PacksOnce(plan.train.step.program)) absl::StrAppend(&text, " A unit's weights, kept packed, are part of it.");
  } else if (many.host_bytes > one.host_bytes) {
    absl::StrAppend(&text, "accumulating adds nothing to the arena.");
  } else {
    absl::StrAppend(&text, "the buffers happen to pack more tightly, by ",
                    FormatBytes(one.arena_bytes - many.arena_bytes), ".");
  }
  if (many.host_bytes > one.host_bytes) {
    absl::StrAppend(&text, " In host memory it adds ", FormatBytes(many.host_bytes - one.host_bytes),
                    ", where what is offloaded waits.");
  }
  return Section(
      absl::StrCat("What K micro-batches add", k > 1 ? "" : " (this job has K = 1; K = 4 was compiled to compare)"),
      text);
}

SectionText ExplainUpdate(const Explained& x) {
  const JobPlan& plan = x.plan;
  const UpdateMemory memory = MeasureUpdate(plan.train.step.program);
  const int64_t added = std::max<int64_t>(0, memory.update_bytes - memory.elsewhere_bytes);
  std::string text =
      absl::StrCat("While the update of ", RulesInUse(plan), " runs, ", FormatBytes(memory.update_bytes),
                   " are in use; before it, at most ", FormatBytes(memory.elsewhere_bytes), ". It adds ",
                   added == 0 ? "nothing" : FormatBytes(added),
                   ". It updates weights, masters and states in place, in one pass over the shard, from ",
                   plan.options.updates_on_host() ? "gradients that are copied to host memory a unit at a time"
                                                  : "gradients that are there already",
                   ", and the clipping factor is a scalar: the update makes no copy of "
                   "anything the size of the model, in the first step or later.",
                   plan.options.snapshot ? " (The copy for checkpoints is made after a step that is saved. Its bytes "
                                           "are part of both numbers.)"
                                         : "");
  const bool in_backward = plan.options.update == UpdateTime::kInBackward;
  const Settings settings = in_backward ? Settings{{"optimizer.update", "AFTER_BACKWARD"}} : UpdateInBackward(x.job);
  if (settings.empty()) return Section("What the optimizer step adds", text);  // Compute FP16 cannot update so.
  if (const absl::StatusOr<Draft> other = x.drafter.Compile(settings); other.ok()) {
    absl::StrAppend(
        &text, in_backward ? " This job updates" : " If it updated",
        " each unit in backward, as soon as its gradients are complete (optimizer.update=IN_BACKWARD, which "
        "needs clipping PREVIOUS_NORM, PER_UNIT or none, and non_finite SKIP)",
        in_backward ? "; after backward" : "", ", one rank would need ", FormatBytes(other->cost.arena_bytes), " (",
        Difference(other->cost.arena_bytes, x.own.cost.arena_bytes), ").");
  }
  return Section("What the optimizer step adds", text);
}

}  // namespace shale
