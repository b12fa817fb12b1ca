#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/plan/report/explain_sections.h"
#include "engine/strings/printing.h"

namespace shale {
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
  return 2 + masters + static_cast<double>(StateBytes(optimizer.states(), kElements)) / kElements;
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
  const std::vector<Optimizer> groups = MakeGroupOptimizers(job.optimizer);
  for (size_t i = 0; i < groups.size(); ++i) {
    rows.push_back({absl::StrCat("optimizer.groups[", i, "], ", EntryOf(groups[i].kind).name),
                    absl::StrFormat("%.4g bytes a parameter", BytesOf(job.precision.master, groups[i])),
                    "this job's form"});
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
