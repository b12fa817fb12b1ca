#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/planner/summary.h"
#include "engine/report/explain_sections.h"
#include "engine/step/combination.h"
#include "engine/text/layout.h"
#include "engine/text/numbers.h"

namespace shale {

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
  const double parameters = static_cast<double>(CountParameters(plan.train.graph));
  std::string text =
      absl::StrCat("Skipping the reduction until the last micro-batch means holding the gradients of all ",
                   WithCommas(static_cast<int64_t>(parameters)), " parameters in fp32 on every rank, ",
                   FormatBytes(static_cast<int64_t>(std::min(4 * parameters, 0x1p62))), ", not 1/",
                   alternatives.ranks(), " of them. Here that is accumulation NO_SYNC: ");
  if (deferred.bytes == 0) {
    absl::StrAppend(&text, "it is too large to be planned.");
  } else {
    absl::StrAppend(&text, "it needs ", FormatBytes(deferred.bytes), " and sends ", FormatBytes(deferred.sent_bytes),
                    " a step, this job's ", FormatBytes(own.bytes), " and ", FormatBytes(own.sent_bytes), ".");
  }
  if (plan.options.micro_batches == 1) absl::StrAppend(&text, " With one micro-batch a step it saves no reduction.");
  return absl::StrCat(title, Paragraph(text), Table(rows), "\n");
}

std::string ExplainStrategies(const Alternatives& alternatives) {
  const JobPlan& plan = alternatives.plan();
  const Cost& own = alternatives.own();
  if (alternatives.ranks() == 1) return "";
  std::vector<std::vector<std::string>> rows = {
      {"strategy", "accumulation", "needs", "against this job", "one rank sends", ""}};
  for (Strategy strategy : {Strategy::kDdp, Strategy::kZero1, Strategy::kZero2, Strategy::kFullShard}) {
    StepOptions options = plan.options;
    if (strategy != options.strategy) options.accumulation = Accumulation::kAuto;
    options.strategy = strategy;
    const absl::StatusOr<Cost> cost = alternatives.CostOf(options);
    if (!cost.ok()) {
      rows.push_back({std::string(ToString(strategy)), "-", "-", "-", "-", "too large"});
      continue;
    }
    rows.push_back({std::string(ToString(strategy)), std::string(ToString(cost->options.accumulation)), Needs(*cost),
                    Difference(cost->bytes, own.bytes), FormatBytes(cost->sent_bytes),
                    strategy == plan.options.strategy ? "this job" : alternatives.Fits(*cost)});
  }
  return absl::StrCat("What other strategies would need\n",
                      Paragraph("Each with the accumulation that AUTO would take under this budget."), Table(rows),
                      "\n");
}

}  // namespace shale
