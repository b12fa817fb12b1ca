#include "engine/plan/planner/variant.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/strings/printing.h"

namespace shale {

std::string SettingsText(const std::vector<Override>& settings, absl::string_view separator) {
  const auto text = [](std::string* out, const Override& setting) { out->append(setting.text()); };
  return absl::StrJoin(settings, separator, text);
}

std::string CostText(const Cost& cost) {
  const std::string arena = FormatBytes(cost.arena_bytes);
  return cost.host_bytes == 0 ? arena : absl::StrCat(arena, " + ", FormatBytes(cost.host_bytes), " of host memory");
}

std::string TimesText(const Cost& cost, const Cost& than) {
  if (cost.seconds <= 0 || than.seconds <= 0) return "";
  const bool covered = cost.covered() && than.covered();
  return absl::StrFormat("%.2f x the time%s", cost.seconds / than.seconds, covered ? "" : ", estimated");
}

std::string MissingText(const Cost& cost, const Budget& budget) {
  std::vector<std::string> missing;
  const auto compare = [&](absl::string_view verb, int64_t bytes, absl::string_view of, int64_t budget_bytes,
                           const std::string& origin, absl::string_view field) {
    if (bytes <= budget_bytes) return;
    const std::string another = budget.firm ? "" : absl::StrCat("; ", field, " sets another");
    missing.push_back(absl::StrCat(verb, " ", FormatBytes(bytes), of, " ", FormatBytes(budget_bytes),
                                   origin.empty() ? "" : absl::StrCat(" (", origin, another, ")"), ", ",
                                   FormatBytes(bytes - budget_bytes), " too little"));
  };
  compare("needs", cost.arena_bytes, " per rank, budget", budget.bytes, budget.origin, "memory.budget_bytes");
  compare("offloads", cost.host_bytes, " to host memory per rank, host budget", budget.host_bytes, budget.host_origin,
          "memory.host_budget_bytes");
  return absl::StrJoin(missing, ", and ");
}

namespace {

// Returns "activation_checkpointing.preset=BLOCK (9.83 GiB + 11.8 GiB of host memory, 1.24 x the time; the CPU
// updates)". Of a change that needs others, the first setting is the change: "a=1 with b=2 and c=3 (...)".
std::string DescribeWayOut(const Variant& way, const Cost& own, bool several_changes) {
  std::string text = SettingsText(way.overrides, several_changes ? ", " : " and ");
  if (!several_changes && way.overrides.size() > 1) {
    const std::vector<Override> others(way.overrides.begin() + 1, way.overrides.end());
    text = absl::StrCat(way.overrides.front().text(), " with ", SettingsText(others, " and "));
  }
  const std::string times = TimesText(way.cost, own);
  return absl::StrCat(text, " (", CostText(way.cost), times.empty() ? "" : ", ", times, way.caveat.empty() ? "" : "; ",
                      way.caveat, ")");
}

// Returns "a", "a or b", "a, b or c".
std::string JoinAlternatives(const std::vector<std::string>& all) {
  if (all.size() < 2) return absl::StrJoin(all, "");
  return absl::StrCat(absl::StrJoin(all.begin(), all.end() - 1, ", "), " or ", all.back());
}

std::string Advice(const Refusal& refusal) {
  const std::string smaller = absl::StrCat("make the model or batch.sequence_length smaller",
                                           refusal.budget.firm ? "" : ", or the budget larger");
  if (refusal.nearest) {
    return absl::StrCat("it is still too large with ",
                        DescribeWayOut(*refusal.nearest, refusal.cost, /*several_changes=*/true), "; ", smaller);
  }
  if (refusal.ways_out.empty()) {
    return refusal.search_ended_early ? "no setting was found that saves enough memory"
                                      : absl::StrCat("no further setting saves memory; ", smaller);
  }
  if (refusal.only_together) {
    return absl::StrCat("no single change suffices, but these together do: ",
                        DescribeWayOut(refusal.ways_out.front(), refusal.cost, /*several_changes=*/true));
  }
  std::vector<std::string> ways;
  for (const Variant& way : refusal.ways_out)
    ways.push_back(DescribeWayOut(way, refusal.cost, /*several_changes=*/false));
  return absl::StrCat("fits with ", JoinAlternatives(ways));
}

}  // namespace

std::string RefusalText(const Refusal& refusal) {
  return absl::StrCat(MissingText(refusal.cost, refusal.budget), "; ", Advice(refusal),
                      refusal.search_ended_early ? " (the search reached its time limit; there may be more)" : "");
}

}  // namespace shale
