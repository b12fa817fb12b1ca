#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/compile/step/options_enums.h"
#include "engine/plan/planner/options.h"
#include "engine/plan/planner/summary.h"
#include "engine/plan/report/explain_sections.h"
#include "engine/strings/printing.h"

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

// Returns the row of a job with this strategy, mesh and accumulation. Gradients are summed in fp32 where the strategy
// refuses other shards.
ComparedRow RowOf(const Explained& x, std::string name, Strategy strategy, const Mesh& mesh,
                  Accumulation accumulation) {
  const StepOptions& own = x.plan.options;
  ComparedRow row{.name = {std::move(name)}, .overrides = StrategyOf(strategy, x.job)};
  row.overrides.push_back({"sharding.accumulation", std::string(ToString(accumulation))});
  row.overrides.push_back({"sharding.shard_ranks", mesh.replicate > 1 ? absl::StrCat(mesh.shard) : ""});
  if (own.gradient_shards != DType::kFloat32 && !CheckGradientShards(strategy, accumulation, mesh).ok()) {
    absl::StrAppend(&row.name.front(), ", gradient_shards FP32");
    row.overrides.push_back({"precision.gradient_shards", "FP32"});
  }
  if (own.reduce != DType::kFloat32 && !CheckReduce(strategy, mesh).ok()) {
    absl::StrAppend(&row.name.front(), ", reduce FP32");
    row.overrides.push_back({"precision.reduce", "FP32"});
  }
  return row;
}

}  // namespace

SectionText ExplainNoSync(const Explained& x) {
  const JobPlan& plan = x.plan;
  const Cost& own = x.own.cost;
  constexpr absl::string_view kTitle = "What accumulating without synchronization (no_sync) would cost";
  if (x.ranks() == 1) return Section(kTitle, "Nothing: there is one rank.");
  std::vector<ComparedRow> rows;
  for (Accumulation accumulation : {Accumulation::kSharded, Accumulation::kNoSync, Accumulation::kLayered}) {
    const bool other = accumulation == Accumulation::kNoSync && plan.options.strategy == Strategy::kZero2;
    const Strategy strategy = other ? Strategy::kZero1 : plan.options.strategy;
    rows.push_back(RowOf(x, absl::StrCat(ToString(accumulation), other ? " with strategy ZERO1" : ""), strategy,
                         plan.options.mesh, accumulation));
    rows.back().is_own = !other && accumulation == plan.options.accumulation;
    if (!CheckCombination(strategy, accumulation).ok()) {
      rows.back().impossible = absl::StrCat("not with ", ToString(strategy));
    }
  }
  Cost deferred;
  const auto needs = [&](const Draft& draft) {
    if (draft.options.accumulation == Accumulation::kNoSync) deferred = draft.cost;
    return CostText(draft.cost);
  };
  const std::string table =
      CompareTable(x, {"accumulation"}, rows, {{"needs", needs}, AgainstThisJob(x), OneRankSends()});
  const double parameters = static_cast<double>(CountTrainedParameters(plan.train.graph));
  const bool all_train = CountTrainedParameters(plan.train.graph) == CountParameters(plan.train.graph);
  std::string text =
      absl::StrCat("Skipping the reduction until the last micro-batch means holding the gradients of all ",
                   WithCommas(static_cast<int64_t>(parameters)), all_train ? " parameters" : " parameters that train",
                   " in fp32 on every rank, ", FormatBytes(static_cast<int64_t>(std::min(4 * parameters, 0x1p62))),
                   ", not 1/", WithCommas(plan.options.mesh.shard), " of them. Here that is accumulation NO_SYNC: ");
  if (deferred.arena_bytes == 0) {
    absl::StrAppend(&text, "it cannot be planned.");
  } else {
    absl::StrAppend(&text, "it needs ", FormatBytes(deferred.arena_bytes), " and sends ",
                    FormatBytes(deferred.sent_bytes), " a step, this job's ", FormatBytes(own.arena_bytes), " and ",
                    FormatBytes(own.sent_bytes), ".");
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
  return Section(kTitle, text, table);
}

SectionText ExplainStrategies(const Explained& x) {
  const JobPlan& plan = x.plan;
  if (x.ranks() == 1) return "";
  std::vector<ComparedRow> rows;
  for (const auto& [strategy, mesh] : StrategiesAndMeshes(plan.options)) {
    const std::string groups = mesh.replicate > 1 ? absl::StrCat(", shard_ranks ", WithCommas(mesh.shard)) : "";
    rows.push_back(RowOf(x, absl::StrCat(ToString(strategy), groups), strategy, mesh, Accumulation::kAuto));
    rows.back().is_own = strategy == plan.options.strategy && mesh == plan.options.mesh;
  }
  const auto accumulation = [](const Draft& draft) { return std::string(ToString(draft.options.accumulation)); };
  return Section("What other strategies would need",
                 "Each with the accumulation that AUTO would take under this budget.",
                 CompareTable(x, {"strategy"}, rows,
                              {{"accumulation", accumulation}, Needs(), AgainstThisJob(x), OneRankSends()}));
}

}  // namespace shale
