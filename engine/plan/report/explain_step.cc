#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
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
  const StepProgram& program = many_draft.train.step.program;
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
    if (QuantizesOnce(program)) {
      absl::StrAppend(&text, " Weights in fp8, which are quantized once for all micro-batches, are part of it.");
    }
  } else if (many.arena_bytes > one.arena_bytes) {
    absl::StrAppend(
        &text, "accumulating adds ", FormatBytes(many.arena_bytes - one.arena_bytes),
        ". LAYERED runs all micro-batches through a unit before the next unit, so the tensors that backward needs "
        "are kept for each of them; in return, gathers and reductions happen once per step. A stronger preset of "
        "activation checkpointing reduces the cost.");
    if (PacksOnce(program)) absl::StrAppend(&text, " A unit's weights, kept packed, are part of it.");
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
  std::string text = absl::StrCat(
      "While the update of ", RulesInUse(plan), " runs, ", FormatBytes(memory.update_bytes),
      " are in use; before it, at most ", FormatBytes(memory.elsewhere_bytes), ". It adds ",
      added == 0 ? "nothing" : FormatBytes(added),
      plan.options.composed() == nullptr
          ? ""
          : ". A rule that needs more than a pass first makes a direction of the gradients, in buffers that "
            "live for the update of one unit",
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

namespace {

// The forms of a parameter's state that the section compares.
struct Form {
  std::string settings;
  MasterWeights master;
  Moments moments;
};

double BytesOf(MasterWeights master, const Optimizer& optimizer) {
  constexpr int64_t kElements = int64_t{1} << 20;
  const int64_t masters = master == MasterWeights::kFloat32 ? 4 : master == MasterWeights::kSplit ? 2 : 0;
  return 2 + masters + static_cast<double>(StateBytes(optimizer, kElements)) / kElements;
}

double BytesOf(const Form& form, OptimizerConfig optimizer) {
  optimizer.moments = form.moments;
  return BytesOf(form.master, MakeOptimizer(optimizer));
}

}  // namespace

SectionText ExplainState(const Explained& x) {
  const Job& job = x.job;
  if (job.precision.compute != ComputePrecision::kBFloat16) return "";
  OptimizerConfig lean = job.optimizer;
  lean.moments = Moments::kFloat32;
  SetLeanMoments(lean);
  std::vector<Form> forms = {{"precision.master=MASTER_FP32", MasterWeights::kFloat32, Moments::kFloat32},
                             {"precision.master=SPLIT", MasterWeights::kSplit, Moments::kFloat32}};
  if (lean.moments == Moments::kBFloat16) {
    forms.push_back({"optimizer.moments=BF16, precision.master=SPLIT", MasterWeights::kSplit, Moments::kBFloat16});
  }
  forms.push_back({"optimizer.state=LEAN", MasterWeights::kNone, lean.moments});
  std::vector<std::vector<std::string>> rows;
  for (const Form& form : forms) {
    const bool own = form.master == job.precision.master && form.moments == job.optimizer.moments;
    rows.push_back({form.settings, absl::StrFormat("%.4g bytes a parameter", BytesOf(form, job.optimizer)),
                    own ? "this job" : ""});
  }
  const bool narrow = job.precision.gradient_shards == GradientShards::kBFloat16;
  const auto add = [&](absl::string_view what, const Optimizer& optimizer) {
    rows.push_back({absl::StrCat(what, EntryOf(optimizer.kind).name),
                    absl::StrFormat("%.4g bytes a parameter", BytesOf(job.precision.master, optimizer)),
                    "this job's form"});
  };
  for (const Optimizer& others : MakeOptimizer(job.optimizer).others) add("all but matrices of blocks, ", others);
  const std::vector<Optimizer> groups = MakeGroupOptimizers(job.optimizer);
  for (size_t i = 0; i < groups.size(); ++i) {
    add(absl::StrCat("optimizer.groups[", i, "], "), groups[i]);
    for (const Optimizer& others : groups[i].others) {
      add(absl::StrCat("optimizer.groups[", i, "], all but matrices of blocks, "), others);
    }
  }
  rows.push_back({"precision.gradient_shards=FP32", "4 bytes a parameter on top", narrow ? "" : "this job"});
  rows.push_back({"precision.gradient_shards=BF16", "2 bytes a parameter on top", narrow ? "this job" : ""});
  return Section("What a parameter costs",
                 "These are a bf16 weight, its master and the optimizer's states, before they are "
                 "sharded. The gradient, summed over a step, comes on top; BF16 rounds each sum "
                 "stochastically, needs shards of gradients, and may cost quality. LEAN rounds weights, "
                 "and moments that it keeps in "
                 "bf16, stochastically. It may cost quality, so compare its loss with that of a run "
                 "with masters. Where a job sets precision.master or optimizer.moments, that counts.",
                 Table(rows));
}

}  // namespace shale
