#include "engine/plan/report/explain.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/plan/planner/options.h"
#include "engine/plan/report/explain_sections.h"
#include "engine/strings/printing.h"
#include "kernels/check.h"

namespace shale {

std::string Needs(const Cost& cost) {
  return absl::StrCat(FormatBytes(cost.arena_bytes),
                      cost.host_bytes > 0 ? absl::StrCat(" + ", FormatBytes(cost.host_bytes), " of host") : "");
}

std::string Difference(int64_t bytes, int64_t than) {
  if (bytes == than) return "the same";
  return bytes < than ? absl::StrCat("saves ", FormatBytes(than - bytes))
                      : absl::StrCat("adds ", FormatBytes(bytes - than));
}

std::string CompareTable(const Explained& x, std::vector<std::string> headings, const std::vector<ComparedRow>& rows,
                         absl::FunctionRef<std::vector<std::string>(const Draft&)> cells) {
  const size_t columns = headings.size();
  std::vector<std::vector<std::string>> table = {std::move(headings)};
  for (const ComparedRow& row : rows) {
    std::vector<std::string> line(columns, "-");
    const absl::StatusOr<Draft> other = row.is_own ? Draft() : x.drafter.Compile(row.overrides);
    if (other.ok()) {
      const Draft& draft = row.is_own ? x.own : *other;
      line = cells(draft);
      line.insert(line.begin(), row.name.begin(), row.name.end());
      line.push_back(row.is_own ? "this job" : draft.fits ? "" : "does not fit");
    } else {
      std::copy(row.name.begin(), row.name.end(), line.begin());
      line.back() = row.impossible;
    }
    table.push_back(std::move(line));
  }
  return Table(table);
}

std::string ExplainOtherOptions(const Explained& x) {
  const OptionQuery query{.job = x.job, .has_host_ops = x.drafter.OpsOf(x.job.sharding.ranks).host() != nullptr};
  std::vector<ComparedRow> rows;
  std::vector<std::string> caveats;
  for (const Option& option : Options()) {
    if (option.settings == nullptr || (option.flags & kHasOwnSection) != 0) continue;
    for (Settings& settings : option.settings(query)) {
      if (!x.drafter.With(settings).ok()) continue;  // The job rules it out.
      const auto text = [](std::string* out, const Override& setting) { out->append(setting.text()); };
      rows.push_back({.name = {absl::StrJoin(settings, ", ", text)}, .overrides = std::move(settings)});
      if (!option.caveat.empty()) caveats.push_back(absl::StrCat(rows.back().name.front(), ": ", option.caveat, "."));
    }
  }
  if (rows.empty()) return "";
  return absl::StrCat("What other settings would need\n",
                      Paragraph(absl::StrCat("Each by itself, with all else as it is. ", absl::StrJoin(caveats, " "))),
                      CompareTable(x, {"setting", "needs", "against this job", "one rank sends", ""}, rows,
                                   [&](const Draft& draft) -> std::vector<std::string> {
                                     return {Needs(draft.cost),
                                             Difference(draft.cost.arena_bytes, x.own.cost.arena_bytes),
                                             FormatBytes(draft.cost.sent_bytes)};
                                   }),
                      "\n");
}

absl::StatusOr<std::string> ExplainText(const Job& job, const JobPlan& plan, const Machine& machine,
                                        const WorkLimits& limits) {
  Job planned = job;
  planned.sharding.accumulation = plan.options.accumulation;
  Machine with_budget = machine;
  with_budget.default_budget = [&](int64_t) -> absl::StatusOr<Budget> { return plan.budget; };
  Drafter drafter(planned, with_budget, limits);
  SHALE_ASSIGN_OR_RETURN(const Draft own, drafter.Compile());
  const Explained x{.job = planned, .plan = plan, .drafter = drafter, .own = own, .limits = limits};
  using Text = absl::StatusOr<std::string>;
  const std::pair<const char*, std::function<Text()>> sections[] = {
      {"where bytes go", [&]() -> Text { return ExplainWhereBytesGo(x); }},
      {"attention", [&]() -> Text { return ExplainAttention(x); }},
      {"micro-batches", [&] { return ExplainMicroBatches(x); }},
      {"one piece", [&]() -> Text { return ExplainOnePiece(x); }},
      {"headroom", [&] { return ExplainHeadroom(x); }},
      {"learning rate", [&] { return ExplainLearningRate(job); }},
      {"packing", [&]() -> Text { return ExplainPacking(job); }},
      {"mix", [&]() -> Text { return ExplainMix(job); }},
      {"target weights", [&]() -> Text { return ExplainTargetWeights(job); }},
      {"state", [&]() -> Text { return ExplainState(x); }},
      {"update", [&]() -> Text { return ExplainUpdate(x); }},
      {"activation checkpointing", [&]() -> Text { return ExplainCheckpointing(x); }},
      {"offload", [&]() -> Text { return ExplainOffload(x); }},
      {"offload of state", [&]() -> Text { return ExplainStateOffload(x); }},
      {"no_sync", [&]() -> Text { return ExplainNoSync(x); }},
      {"strategies", [&]() -> Text { return ExplainStrategies(x); }},
      {"other settings", [&]() -> Text { return ExplainOtherOptions(x); }}};
  std::string text;
  std::vector<std::string> left_out;
  for (const auto& [name, explain] : sections) {
    const Text section = limits.Check().ok() ? explain() : Text("");
    // A section that was under way took settings that could not be compiled in time for ones that cannot be at all.
    if (const absl::Status over = limits.Check(); absl::IsDeadlineExceeded(over)) {
      left_out.push_back(name);
    } else {
      SHALE_RETURN_IF_ERROR(over);
      SHALE_RETURN_IF_ERROR(section.status());
      text += *section;
    }
  }
  if (left_out.empty()) return text;
  return absl::StrCat(text, "Left out, because the time for planning is over: ", absl::StrJoin(left_out, ", "), ".\n");
}

}  // namespace shale
