#include "engine/planner/refusal.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "engine/text/numbers.h"

namespace shale {
namespace {

std::string SettingOf(const Override& change) { return absl::StrCat(change.path, "=", change.value); }

// Returns "a=1 with b=2 and c=3" for a change that needs others, or "a=1, b=2, c=3" for several changes.
std::string SettingsOf(const WayOut& way, bool several_changes) {
  std::vector<std::string> settings;
  for (const Override& change : way.overrides) settings.push_back(SettingOf(change));
  if (several_changes) return absl::StrJoin(settings, ", ");
  const std::string others = absl::StrJoin(settings.begin() + 1, settings.end(), " and ");
  return absl::StrCat(settings.front(), others.empty() ? "" : " with ", others);
}

// Returns "activation_checkpointing.preset=BLOCK (9.83 GiB, and 11.8 GiB of host memory)".
std::string DescribeWayOut(const WayOut& way, bool several_changes) {
  return absl::StrCat(SettingsOf(way, several_changes), " (", FormatBytes(way.arena_bytes),
                      way.host_bytes > 0 ? absl::StrCat(", and ", FormatBytes(way.host_bytes), " of host memory") : "",
                      way.caveat.empty() ? "" : absl::StrCat("; ", way.caveat), ")");
}

// Returns " (80 % of this machine's memory; memory.budget_bytes sets another)".
std::string Origin(absl::string_view origin, bool firm, absl::string_view field) {
  if (origin.empty()) return "";
  return absl::StrCat(" (", origin, firm ? "" : absl::StrCat("; ", field, " sets another"), ")");
}

// Returns "needs 31.2 GiB per rank, budget 24.0 GiB (80 % of ...; memory.budget_bytes sets another), 7.20 GiB too
// little", the same for host memory, or both.
std::string WhatIsMissing(const Refusal& refusal) {
  std::vector<std::string> missing;
  const auto compare = [&](absl::string_view needs, int64_t bytes, absl::string_view of, int64_t budget_bytes,
                           absl::string_view origin, absl::string_view field) {
    if (bytes <= budget_bytes) return;
    missing.push_back(absl::StrCat(needs, ", ", of, " ", FormatBytes(budget_bytes),
                                   Origin(origin, refusal.budget.firm, field), ", ", FormatBytes(bytes - budget_bytes),
                                   " too little"));
  };
  const Budget& budget = refusal.budget;
  compare(absl::StrCat("needs ", FormatBytes(refusal.arena_bytes), " per rank"), refusal.arena_bytes, "budget",
          budget.bytes, budget.origin, "memory.budget_bytes");
  compare(absl::StrCat("offloads ", FormatBytes(refusal.host_bytes), " to host memory per rank"), refusal.host_bytes,
          "host budget", budget.host_bytes, budget.host_origin, "memory.host_budget_bytes");
  return absl::StrJoin(missing, ", and ");
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
    return absl::StrCat("it is still too large with ", DescribeWayOut(*refusal.nearest, /*several_changes=*/true), "; ",
                        smaller);
  }
  if (refusal.ways_out.empty()) {
    return refusal.search_ended_early ? "no setting was found that saves enough memory"
                                      : absl::StrCat("no further setting saves memory; ", smaller);
  }
  if (refusal.only_together) {
    return absl::StrCat("no single change suffices, but these together do: ",
                        DescribeWayOut(refusal.ways_out.front(), /*several_changes=*/true));
  }
  std::vector<std::string> ways;
  for (const WayOut& way : refusal.ways_out) ways.push_back(DescribeWayOut(way, /*several_changes=*/false));
  return absl::StrCat("fits with ", JoinAlternatives(ways));
}

}  // namespace

std::string RefusalText(const Refusal& refusal) {
  return absl::StrCat(WhatIsMissing(refusal), "; ", Advice(refusal),
                      refusal.search_ended_early ? " (the search reached its time limit; there may be more)" : "");
}

}  // namespace shale
