#include <algorithm>
#include <utility>

#include "absl/strings/string_view.h"
#include "engine/plan/planner/draft.h"
#include "engine/plan/planner/options.h"

namespace shale {
namespace {

// Returns whether `a` costs less than `b`, of two variants that fit: the seconds decide if they are no estimates.
bool CostsLess(Cheapest cheapest, const Cost& a, const Cost& b) {
  if (a.covered() && b.covered()) return a.seconds < b.seconds;
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

// Returns the settings of an option as the drafter's job takes them.
Settings ThatLoad(const Drafter& drafter, const Option& option, Settings settings) {
  return option.ThatLoad([&](const Settings& tried) { return drafter.With(tried); }, std::move(settings));
}

// Returns the cheapest of an option's settings with which the job fits, if there is one.
std::optional<Variant> WayOutOf(Drafter& drafter, const Option& option) {
  std::optional<Variant> best;
  for (Settings& settings : option.SettingsFor(QueryOf(drafter, drafter.job(), OptionUse::kAlone))) {
    Variant variant = drafter.Try(ThatLoad(drafter, option, std::move(settings)), std::string(option.caveat));
    if (!variant.fits || (best && !CostsLess(option.cheapest, variant.cost, best->cost))) continue;
    best = std::move(variant);
    if (option.cheapest == Cheapest::kFirst && !best->cost.covered()) break;
  }
  return best;
}

// Returns, for each option, the cheapest single change with which the job fits, if there is one.
std::vector<Variant> SingleWaysOut(Drafter& drafter) {
  std::vector<Variant> ways;
  absl::string_view found;
  for (const Option& option : Options()) {
    if (option.path == found) continue;
    std::optional<Variant> way = WayOutOf(drafter, option);
    if (!way) continue;
    found = option.path;
    ways.push_back(*std::move(way));
  }
  if (std::all_of(ways.begin(), ways.end(), [](const Variant& way) { return way.cost.covered(); })) {
    std::stable_sort(ways.begin(), ways.end(),
                     [](const Variant& a, const Variant& b) { return a.cost.seconds < b.cost.seconds; });
  }
  return ways;
}

// Returns the settings of all options that save memory together, for this use.
Settings SettingsTogether(Drafter& drafter, OptionUse use) {
  Settings all;
  Job job = drafter.job();
  for (const Option& option : Options()) {
    if ((option.flags & kTogether) == 0) continue;
    const std::vector<Settings> settings = option.SettingsFor(QueryOf(drafter, job, use));
    if (settings.empty()) continue;
    Settings with = all;
    with.insert(with.end(), settings.back().begin(), settings.back().end());
    with = ThatLoad(drafter, option, std::move(with));
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

}  // namespace

absl::StatusOr<Refusal> RefusalOf(Drafter& drafter, Draft& draft, const WorkLimits& limits) {
  drafter.TimeOf(drafter.job(), draft).Fill(draft.cost);
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

}  // namespace shale
