#include "engine/plan/planner/refusal.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "engine/plan/planner/options.h"
#include "engine/strings/printing.h"

namespace shale {
namespace {

// Returns whether `a` costs less than `b`, of two variants that fit.
bool CostsLess(Cheapest cheapest, const Cost& a, const Cost& b) {
  switch (cheapest) {
    case Cheapest::kFirst: return false;
    case Cheapest::kLeastRecomputed: return a.flops.recompute < b.flops.recompute;
    case Cheapest::kLeastSent:
      return std::make_pair(a.sent_bytes, a.arena_bytes) < std::make_pair(b.sent_bytes, b.arena_bytes);
  }
  return false;
}

OptionQuery QueryOf(Drafter& drafter, const Job& job, OptionUse use) {
  return {.job = job, .has_host_ops = drafter.OpsOf(drafter.job().sharding.ranks).host() != nullptr, .use = use};
}

// Returns the cheapest of an option's settings with which the job fits, if there is one.
std::optional<Variant> WayOutOf(Drafter& drafter, const Option& option) {
  std::optional<Variant> best;
  for (Settings& settings : option.settings(QueryOf(drafter, drafter.job(), OptionUse::kAlone))) {
    Variant variant = drafter.Try(std::move(settings), std::string(option.caveat));
    if (!variant.fits || (best && !CostsLess(option.cheapest, variant.cost, best->cost))) continue;
    best = std::move(variant);
    if (option.cheapest == Cheapest::kFirst) break;
  }
  return best;
}

// Returns, for each option, the cheapest single change with which the job fits, if there is one.
std::vector<Variant> SingleWaysOut(Drafter& drafter) {
  std::vector<Variant> ways;
  absl::string_view found;
  for (const Option& option : Options()) {
    if (option.settings == nullptr || option.path == found) continue;
    std::optional<Variant> way = WayOutOf(drafter, option);
    if (!way) continue;
    found = option.path;
    ways.push_back(*std::move(way));
  }
  return ways;
}

// Returns the settings of all options that save memory together, for this use.
Settings SettingsTogether(Drafter& drafter, OptionUse use) {
  Settings all;
  Job job = drafter.job();
  for (const Option& option : Options()) {
    if ((option.flags & kTogether) == 0) continue;
    const std::vector<Settings> settings = option.settings(QueryOf(drafter, job, use));
    if (settings.empty()) continue;
    Settings with = all;
    with.insert(with.end(), settings.back().begin(), settings.back().end());
    absl::StatusOr<Job> changed = drafter.With(with);
    if (!changed.ok()) continue;  // The job rules this one out.
    all = std::move(with);
    job = *std::move(changed);
  }
  return all;
}

// Returns all changes that save memory, applied together, and what the job then needs, or nothing if the job has all of
// them already or cannot be compiled with them. Offloads nothing if the job fits without, because the host may not have
// the memory.
std::optional<Variant> WayOutTogether(Drafter& drafter) {
  std::optional<Variant> way;
  for (OptionUse use : {OptionUse::kInArena, OptionUse::kInHostMemory, OptionUse::kUpdatesOnTheHost}) {
    Settings all = SettingsTogether(drafter, use);
    if (all.empty() || (way && all == way->overrides)) continue;
    Variant tried = drafter.Try(std::move(all));
    if (tried.status.ok()) way = std::move(tried);
    if (way && way->fits) break;
  }
  return way;
}

// Returns "a=1 with b=2 and c=3" for a change that needs others, or "a=1, b=2, c=3" for several changes.
std::string SettingsOf(const Variant& way, bool several_changes) {
  std::vector<std::string> settings;
  for (const Override& change : way.overrides) settings.push_back(change.text());
  if (several_changes) return absl::StrJoin(settings, ", ");
  const std::string others = absl::StrJoin(settings.begin() + 1, settings.end(), " and ");
  return absl::StrCat(settings.front(), others.empty() ? "" : " with ", others);
}

// Returns "activation_checkpointing.preset=BLOCK (9.83 GiB, and 11.8 GiB of host memory)".
std::string DescribeWayOut(const Variant& way, bool several_changes) {
  return absl::StrCat(
      SettingsOf(way, several_changes), " (", FormatBytes(way.cost.arena_bytes),
      way.cost.host_bytes > 0 ? absl::StrCat(", and ", FormatBytes(way.cost.host_bytes), " of host memory") : "",
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
  compare(absl::StrCat("needs ", FormatBytes(refusal.cost.arena_bytes), " per rank"), refusal.cost.arena_bytes,
          "budget", budget.bytes, budget.origin, "memory.budget_bytes");
  compare(absl::StrCat("offloads ", FormatBytes(refusal.cost.host_bytes), " to host memory per rank"),
          refusal.cost.host_bytes, "host budget", budget.host_bytes, budget.host_origin, "memory.host_budget_bytes");
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
  for (const Variant& way : refusal.ways_out) ways.push_back(DescribeWayOut(way, /*several_changes=*/false));
  return absl::StrCat("fits with ", JoinAlternatives(ways));
}

}  // namespace

absl::StatusOr<Refusal> RefusalOf(Drafter& drafter, const Draft& draft, const WorkLimits& limits) {
  Refusal refusal{.cost = draft.cost, .budget = draft.budget, .ways_out = SingleWaysOut(drafter)};
  if (refusal.ways_out.empty()) {
    refusal.only_together = true;
    std::optional<Variant> all = WayOutTogether(drafter);
    if (all && all->fits) {
      refusal.ways_out.push_back(*std::move(all));
    } else {
      refusal.nearest = std::move(all);
    }
  }
  refusal.search_ended_early = drafter.stopped();
  if (const absl::Status status = limits.Check(); absl::IsCancelled(status)) return status;
  return refusal;
}

std::string RefusalText(const Refusal& refusal) {
  return absl::StrCat(WhatIsMissing(refusal), "; ", Advice(refusal),
                      refusal.search_ended_early ? " (the search reached its time limit; there may be more)" : "");
}

}  // namespace shale
