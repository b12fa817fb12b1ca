#include "engine/plan/report/explain.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "engine/plan/planner/options.h"
#include "engine/plan/planner/summary.h"
#include "engine/plan/report/explain_sections.h"
#include "engine/strings/printing.h"
#include "kernels/check.h"

namespace shale {

std::string RulesInUse(const JobPlan& plan) {
  std::vector<absl::string_view> names;
  for (const OptimizerInUse& one : OptimizersInUse(plan.train.step.state)) {
    const absl::string_view name = EntryOf(one.In(plan.options).kind).description;
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return absl::StrJoin(names, " and ");
}

std::string Difference(int64_t bytes, int64_t than) {
  if (bytes == than) return "the same";
  return bytes < than ? absl::StrCat("saves ", FormatBytes(than - bytes))
                      : absl::StrCat("adds ", FormatBytes(bytes - than));
}

std::string Section(absl::string_view title, absl::string_view text, absl::string_view table) {
  return absl::StrCat(title, "\n", Paragraph(text), table, "\n");
}

Column Needs() {
  return {"needs", [](const Draft& draft) { return CostText(draft.cost); }};
}
Column NeedsInArena() {
  return {"needs", [](const Draft& draft) { return FormatBytes(draft.cost.arena_bytes); }};
}
Column InHostMemory() {
  return {"in host memory", [](const Draft& draft) { return FormatBytes(draft.cost.host_bytes); }};
}
Column AgainstThisJob(const Explained& x) {
  return {"against this job",
          [own = x.own.cost.arena_bytes](const Draft& draft) { return Difference(draft.cost.arena_bytes, own); }};
}
Column OneRankSends() {
  return {"one rank sends", [](const Draft& draft) { return FormatBytes(draft.cost.sent_bytes); }};
}
Column Activations() {
  return {"activations", [](const Draft& draft) { return FormatBytes(MeasureActivations(draft.train.step.program)); }};
}

namespace {

// Returns why a row has no plan.
std::string WhyNot(const absl::Status& status) {
  if (absl::IsResourceExhausted(status)) return "too large";
  return absl::StrCat("not possible: ", absl::StrReplaceAll(status.message(), {{"\n", "; "}}));
}

// Returns the seconds of a step of `draft`, which is one of the job with these overrides.
std::string StepTakes(const Explained& x, const std::vector<Override>& overrides, Draft draft) {
  const absl::StatusOr<Job> job = x.drafter.With(overrides);
  return job.ok() ? FormatSeconds(x.drafter.TimeOf(*job, draft).seconds) : "-";
}

}  // namespace

std::string CompareTable(const Explained& x, const std::vector<std::string>& names,
                         const std::vector<ComparedRow>& rows, const std::vector<Column>& columns) {
  const bool timed = x.drafter.machine().profile != nullptr;
  std::vector<std::vector<std::string>> table = {names};
  for (const Column& column : columns) table.front().emplace_back(column.heading);
  if (timed) table.front().push_back("a step takes");
  table.front().push_back("");
  for (const ComparedRow& row : rows) {
    std::vector<std::string>& line = table.emplace_back(row.name);
    absl::StatusOr<Draft> other = row.is_own ? Draft() : x.drafter.Compile(row.overrides);
    const Draft* draft = row.is_own ? &x.own : other.ok() ? &*other : nullptr;
    for (const Column& column : columns) line.push_back(draft == nullptr ? "-" : column.cell(*draft));
    std::string remark = row.is_own ? "this job" : row.impossible;
    if (draft == nullptr && remark.empty()) remark = WhyNot(other.status());
    if (draft != nullptr && !row.is_own) remark = draft->fits ? "" : "does not fit";
    if (timed && draft == nullptr) line.push_back("-");
    if (timed && draft != nullptr) {
      line.push_back(row.is_own ? StepTakes(x, {}, x.own) : StepTakes(x, row.overrides, *std::move(other)));
    }
    line.push_back(remark);
  }
  return Table(table);
}

SectionText ExplainOtherOptions(const Explained& x) {
  const OptionQuery query{.job = x.job, .has_host_ops = x.drafter.OpsOf(x.job.sharding.ranks).host() != nullptr};
  const JobWith decided = [&](const Settings& settings) { return x.drafter.With(settings); };
  const JobWith& job_with = x.job_with ? x.job_with : decided;
  std::vector<ComparedRow> rows;
  std::string text = "Each by itself, with all else as it is. ";
  for (const Option& option : Options()) {
    if ((option.flags & kHasOwnSection) != 0) continue;
    for (Settings& found : option.SettingsFor(query)) {
      Settings settings = option.ThatLoad(job_with, std::move(found));
      if (!job_with(settings).ok() || !x.drafter.With(settings).ok()) continue;  // The job rules it out.
      const std::string name = SettingsText(settings, ", ");
      rows.push_back({.name = {name}, .overrides = std::move(settings)});
      if (!option.caveat.empty()) absl::StrAppend(&text, name, ": ", option.caveat, ". ");
    }
  }
  if (rows.empty()) return "";
  return Section("What other settings would need", text,
                 CompareTable(x, {"setting"}, rows, {Needs(), AgainstThisJob(x), OneRankSends()}));
}

absl::StatusOr<std::string> ExplainText(const Job& job, const JobPlan& plan, const Machine& machine,
                                        const WorkLimits& limits, const JobWith& job_with) {
  Job planned = job;
  planned.sharding.accumulation = plan.options.accumulation;
  Machine with_budget = machine;
  with_budget.default_budget = [&](int64_t) -> absl::StatusOr<Budget> { return plan.budget; };
  Drafter drafter(planned, with_budget, limits);
  SHALE_ASSIGN_OR_RETURN(const Draft own, drafter.Compile());
  const Explained x{
      .job = planned, .plan = plan, .drafter = drafter, .own = own, .limits = limits, .job_with = job_with};
  constexpr std::pair<const char*, SectionText (*)(const Explained&)> kSections[] = {
      {"where bytes go", ExplainWhereBytesGo},
      {"matmuls", ExplainMatMuls},
      {"attention", ExplainAttention},
      {"micro-batches", ExplainMicroBatches},
      {"one piece", ExplainOnePiece},
      {"headroom", ExplainHeadroom},
      {"learning rate", ExplainLearningRate},
      {"packing", ExplainPacking},
      {"mix", ExplainMix},
      {"target weights", ExplainTargetWeights},
      {"state", ExplainState},
      {"update", ExplainUpdate},
      {"activation checkpointing", ExplainCheckpointing},
      {"offload", ExplainOffload},
      {"offload of state", ExplainStateOffload},
      {"no_sync", ExplainNoSync},
      {"strategies", ExplainStrategies},
      {"other settings", ExplainOtherOptions}};
  std::string text;
  std::vector<std::string> left_out;
  for (const auto& [name, explain] : kSections) {
    const SectionText section = limits.Check().ok() ? explain(x) : SectionText("");
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
