#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/planner/summary.h"
#include "engine/report/explain_sections.h"
#include "engine/step/combination.h"
#include "engine/text/layout.h"
#include "engine/text/numbers.h"

namespace shale {
namespace {

// Returns the group size of the hybrid sharding to which a job of `ranks` ranks is compared: the largest proper divisor
// of `ranks` up to 8, the number of GPUs in a usual host. Returns 1 or less if no group is larger than one rank.
int64_t GroupOf(int64_t ranks) {
  int64_t group = std::min<int64_t>(ranks / 2, 8);
  while (group > 1 && ranks % group != 0) --group;
  return std::max<int64_t>(group, 1);
}

// Returns the rows of the table of strategies: DDP; each strategy that shards, with the job's mesh; and FULL_SHARD with
// a second mesh: all ranks in one group if the job's sharding is hybrid, else a hybrid mesh, if there is one.
std::vector<std::pair<Strategy, Mesh>> StrategiesAndMeshes(const StepOptions& options) {
  const Mesh own = options.mesh, all = {.shard = own.ranks()};
  std::vector<std::pair<Strategy, Mesh>> compared = {
      {Strategy::kDdp, all}, {Strategy::kZero1, own}, {Strategy::kZero2, own}, {Strategy::kFullShard, own}};
  if (own != all) {
    compared.push_back({Strategy::kFullShard, all});
  } else if (const int64_t group = GroupOf(own.ranks()); group > 1) {
    compared.insert(compared.end() - 1, {Strategy::kFullShard, {.replicate = own.ranks() / group, .shard = group}});
  }
  return compared;
}

// Lets gradients be summed in fp32 if the options refuse other shards. Returns whether that changed them.
bool WithPossibleGradientShards(StepOptions& options) {
  if (options.gradient_shards == DType::kFloat32) return false;
  if (CheckGradientShards(options.strategy, options.accumulation, options.mesh).ok()) return false;
  options.gradient_shards = DType::kFloat32;
  return true;
}

}  // namespace

std::string ExplainNoSync(const Alternatives& alternatives) {
  const JobPlan& plan = alternatives.plan();
  const Cost& own = alternatives.own();
  const std::string title = "What accumulating without synchronization (no_sync) would cost\n";
  if (alternatives.ranks() == 1) {
    return absl::StrCat(title, Paragraph("Nothing: there is one rank."), "\n");
  }
  std::vector<std::vector<std::string>> rows = {{"accumulation", "needs", "against this job", "one rank sends", ""}};
  Cost deferred;
  for (Accumulation accumulation : {Accumulation::kSharded, Accumulation::kNoSync, Accumulation::kLayered}) {
    StepOptions options = plan.options;
    options.accumulation = accumulation;
    if (accumulation == Accumulation::kNoSync && options.strategy == Strategy::kZero2) {
      options.strategy = Strategy::kZero1;
    }
    std::string name(ToString(accumulation));
    if (options.strategy != plan.options.strategy) absl::StrAppend(&name, " with strategy ZERO1");
    if (WithPossibleGradientShards(options)) absl::StrAppend(&name, ", gradient_shards FP32");
    const absl::StatusOr<Cost> cost = alternatives.CostOf(options);
    if (!cost.ok()) {
      rows.push_back({name, "-", "-", "-",
                      CheckCombination(options.strategy, accumulation).ok()
                          ? "too large"
                          : absl::StrCat("not with ", ToString(options.strategy))});
      continue;
    }
    if (accumulation == Accumulation::kNoSync) deferred = *cost;
    rows.push_back({name, Needs(*cost), Difference(cost->bytes, own.bytes), FormatBytes(cost->sent_bytes),
                    accumulation == plan.options.accumulation ? "this job" : alternatives.Fits(*cost)});
  }
  const double parameters = static_cast<double>(CountTrainedParameters(plan.train.graph));
  const bool all_train = CountTrainedParameters(plan.train.graph) == CountParameters(plan.train.graph);
  std::string text =
      absl::StrCat("Skipping the reduction until the last micro-batch means holding the gradients of all ",
                   WithCommas(static_cast<int64_t>(parameters)), all_train ? " parameters" : " parameters that train",
                   " in fp32 on every rank, ", FormatBytes(static_cast<int64_t>(std::min(4 * parameters, 0x1p62))),
                   ", not 1/", WithCommas(plan.options.mesh.shard), " of them. Here that is accumulation NO_SYNC: ");
  if (deferred.bytes == 0) {
    absl::StrAppend(&text, "it is too large to be planned.");
  } else {
    absl::StrAppend(&text, "it needs ", FormatBytes(deferred.bytes), " and sends ", FormatBytes(deferred.sent_bytes),
                    " a step, this job's ", FormatBytes(own.bytes), " and ", FormatBytes(own.sent_bytes), ".");
  }
  const int64_t k = plan.options.micro_batches;
  if (plan.options.strategy == Strategy::kDdp && k > 1) {
    const int64_t once = AllReducedGradientBytes(plan.train.step.program);
    absl::StrAppend(
        &text, " This job all-reduces gradients of ", FormatBytes(once),
        " once a step; reducing after every micro-batch would all-reduce them ", WithCommas(k), " times, ",
        FormatBytes(once > std::numeric_limits<int64_t>::max() / k ? std::numeric_limits<int64_t>::max() : k * once),
        " a step.");
  }
  if (k == 1) absl::StrAppend(&text, " With one micro-batch a step it saves no reduction.");
  return absl::StrCat(title, Paragraph(text), Table(rows), "\n");
}

std::string ExplainStrategies(const Alternatives& alternatives) {
  const JobPlan& plan = alternatives.plan();
  const Cost& own = alternatives.own();
  if (alternatives.ranks() == 1) return "";
  std::vector<std::vector<std::string>> rows = {
      {"strategy", "accumulation", "needs", "against this job", "one rank sends", ""}};
  for (const auto& [strategy, mesh] : StrategiesAndMeshes(plan.options)) {
    StepOptions options = plan.options;
    const bool this_job = strategy == options.strategy && mesh == options.mesh;
    if (!this_job) options.accumulation = Accumulation::kAuto;
    options.strategy = strategy;
    options.mesh = mesh;
    if (strategy != Strategy::kFullShard) options.offload_state.parameters = false;  // Others refuse it.
    std::string name = absl::StrCat(ToString(strategy),
                                    mesh.replicate > 1 ? absl::StrCat(", shard_ranks ", WithCommas(mesh.shard)) : "");
    if (WithPossibleGradientShards(options)) absl::StrAppend(&name, ", gradient_shards FP32");
    const absl::StatusOr<Cost> cost = alternatives.CostOf(options);
    if (!cost.ok()) {
      rows.push_back({name, "-", "-", "-", "-", "too large"});
      continue;
    }
    rows.push_back({name, std::string(ToString(cost->options.accumulation)), Needs(*cost),
                    Difference(cost->bytes, own.bytes), FormatBytes(cost->sent_bytes),
                    this_job ? "this job" : alternatives.Fits(*cost)});
  }
  return absl::StrCat("What other strategies would need\n",
                      Paragraph("Each with the accumulation that AUTO would take under this budget."), Table(rows),
                      "\n");
}

}  // namespace shale
