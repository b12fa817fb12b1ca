#include "tests/engine/plan/time/measured_rows.h"

#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/api/job.h"
#include "engine/api/plan.h"
#include "engine/plan/time/rates.h"
#include "engine/plan/time/work.h"
#include "kernels/cuda/cublaslt/tuning_table.h"
#include "kernels/cuda/cudnn/attention_pieces.h"
#include "kernels/cuda/cudnn/cudnn_attention.h"
#include "kernels/cuda/planned_ops.h"
#include "kernels/reference/reference_ops.h"
#include "tests/engine/plan/time/visit_works.h"

namespace shale {
namespace {

constexpr char kDate[] = "2026-11-27";
// Matmuls of a step differ by this much from their mean.
constexpr double kSpread = 0.06;

// The class of each op, by the first word of its kind.
const std::map<absl::string_view, int>& ClassOfOps() {
  static const auto* const classes = new std::map<absl::string_view, int>{{"MatMul", 0},
                                                                          {"AttentionBackward", 1},
                                                                          {"AttentionForward", 2},
                                                                          {"SwiGluForward", 3},
                                                                          {"SwiGluBackward", 3},
                                                                          {"CrossEntropy", 4},
                                                                          {"RmsNormBackward", 5},
                                                                          {"RmsNormForward", 6},
                                                                          {"Rope", 7},
                                                                          {"Add", 8},
                                                                          {"BiasBackward", 8},
                                                                          {"EmbeddingForward", 8},
                                                                          {"EmbeddingBackward", 8},
                                                                          {"AdamW", 9},
                                                                          {"SumSquares", 9}};
  return *classes;
}

int ClassOf(const Work& work) {
  const auto found = ClassOfOps().find(absl::string_view(work.kind).substr(0, work.kind.find(' ')));
  return found == ClassOfOps().end() ? -1 : found->second;
}

// Adds what a step says of a work, which may be in the profile already, from another row.
void AddWork(const Work& work, double seconds, proto::MachineProfile& profile,
             std::map<std::string, proto::MeasuredWork*>& works) {
  proto::MeasuredWork*& added = works[WorkText(work)];
  if (added == nullptr) {
    added = profile.add_works();
    added->set_kind(work.kind);
    for (const double size : work.sizes) added->add_sizes(size);
    added->set_flops(work.flops);
    added->set_bytes(work.bytes());
    added->set_seconds(seconds);
    added->set_spread(kSpread);
    added->set_count(1);
    added->set_ranks_on_host(1);
    added->mutable_origin()->set_source(proto::Origin::MEASURED);
    added->mutable_origin()->set_date(kDate);
    return;
  }
  const double apart = std::abs(std::log(seconds / added->seconds()));
  added->set_seconds(std::sqrt(seconds * added->seconds()));
  added->set_spread(std::max(added->spread(), apart / 2));
  added->set_count(2);
}

}  // namespace

// Microseconds a token of the trace of each step.
//
// There are no tables of ops for the last two rows. In both, the matmuls are what the other ops leave of the step.
// - 7B: what moves bytes takes the time of the other rows for each byte.
// - 0.5B with 4,096 tokens in a sequence: the run beside PyTorch, of 32 sequences a step, because its kernel for the
//   gradients of attention was timed (1,982 us a block). Another run, with 64 sequences, reached 114,689 tokens/s. What
//   moves bytes has the very numbers of the row with 1,024 tokens, and the optimizer half of its number, because a step
//   has twice the tokens. So 14 % of this step, and 20 % of the one with 1,024 tokens, is known even if the row itself
//   is left out.
std::vector<MeasuredRow> H200Rows() {
  return {
      // matmul, attention backward, forward, SwiGLU, loss, norm backward, forward, RoPE, add and bias, optimizer
      {"qwen2_5_0_5b_1024",
       64,
       152'743,
       {4.532, .706, .173, .461, .259, .184, .101, .066, .065, .061},
       {"batch.micro_batch=16", "memory.loss_chunk_tokens=8192"}},
      {"qwen2_5_1_5b_1024", 64, 59'183, {13.36, .987, .241, .991, .259, .339, .201, .134, .130, .191}},
      {"qwen2_5_3b_1024", 64, 30'470, {27.07, 1.78, .41, 1.57, .259, .497, .298, .221, .212, .359}},
      {"qwen2_5_7b_1024", 64, 13'371, {66.39, 2.39, .57, 2.36, .259, .626, .632, .306, .299, .885}},
      {"qwen2_5_0_5b_4096",
       32,
       116'162,
       {4.049, 2.903, .464, .461, .259, .184, .101, .066, .065, .061 / 2},
       {"batch.micro_batch=4", "memory.loss_chunk_tokens=8192"}},
  };
}

absl::StatusOr<RowStep> PlanRow(const MeasuredRow& row, const proto::MachineProfile& profile) {
  std::vector<std::string> settings = {absl::StrCat("batch.global_batch=", row.sequences), "runtime.graphs=false"};
  settings.insert(settings.end(), row.settings.begin(), row.settings.end());
  const absl::StatusOr<Job> job = LoadJob(absl::StrCat("tools/bench/jobs/gpu/", row.job, ".textproto"), settings);
  if (!job.ok()) return job.status();
  const absl::StatusOr<DataFacts> data = DataFactsForPlanning(*job);
  if (!data.ok()) return data.status();
  const auto create_ops = [](int64_t) {
    const auto no_library = [] {
      return absl::StatusOr<std::unique_ptr<cuda::AttentionGraphs>>(absl::UnimplementedError("not to be loaded"));
    };
    return CreatePlannedCudaOps({.matmul_workspace_bytes = cuda::kMatMulWorkspaceBytes,
                                 .attention = cuda::CreateCudnnAttention(no_library, {}),
                                 .host = CreateReferenceOps()});
  };
  absl::StatusOr<ResolvedJob> resolved = ResolveJob(*job, *data, {.create_ops = create_ops});
  if (!resolved.ok()) return resolved.status();
  return RowStep{row, std::move(resolved->plan.train.step.program),
                 StepFactsOf(resolved->job, resolved->plan, profile)};
}

proto::MachineProfile WithWorksOf(proto::MachineProfile profile, const std::vector<const RowStep*>& steps) {
  profile.clear_works();
  const Rates rates(profile, {});
  std::map<std::string, proto::MeasuredWork*> works;
  for (const RowStep* step : steps) {
    std::array<double, kOpClasses> sums = {};
    VisitWorks(step->program, step->facts.mesh, [&](const Work& work, double times) {
      if (const int c = ClassOf(work); c >= 0) sums[c] += times * rates.Of(work).seconds;
    });
    std::set<std::string> seen;
    VisitWorks(step->program, step->facts.mesh, [&](const Work& work, double) {
      const int c = ClassOf(work);
      if (c < 0 || !seen.insert(WorkText(work)).second) return;
      const double measured = 1e-6 * step->row.microseconds_a_token[c] * step->facts.tokens;
      AddWork(work, rates.Of(work).seconds * measured / sums[c], profile, works);
    });
  }
  return profile;
}

}  // namespace shale
