#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "engine/plan/planner/options.h"
#include "engine/plan/search/search.h"
#include "engine/plan/search/ways.h"

namespace shale::internal {
namespace {

constexpr size_t kMostThatChange = 5;

}  // namespace

std::vector<Variant> ChangingTraining(const Variant& best, Ways& ways) {
  const absl::StatusOr<const Job*> job = ways.JobWithAll(best.overrides);
  if (!job.ok()) return {};
  const auto with = [&](const Settings& settings) {
    std::vector<Override> all = best.overrides;
    all.insert(all.end(), settings.begin(), settings.end());
    return all;
  };
  const JobWith job_with = [&](const Settings& settings) -> absl::StatusOr<Job> {
    const absl::StatusOr<const Job*> changed = ways.JobWithAll(with(settings));
    if (!changed.ok()) return changed.status();
    return **changed;
  };
  std::vector<std::pair<Settings, std::string>> found;  // With the caveat of each.
  std::vector<std::vector<Override>> overrides;
  for (const Option& option : Options()) {
    if ((option.flags & kChangesTraining) == 0) continue;
    for (Settings& settings : option.SettingsFor({.job = **job})) {
      found.emplace_back(option.ThatLoad(job_with, std::move(settings)), option.caveat);
      overrides.push_back(with(found.back().first));
    }
  }
  std::vector<Variant> planned = ways.PlannedWith(overrides);
  for (size_t i = 0; i < planned.size(); ++i) {
    planned[i].overrides = std::move(found[i].first);
    planned[i].caveat = std::move(found[i].second);
  }
  std::erase_if(planned, [](const Variant& way) { return !way.status.ok() || !way.fits; });
  std::stable_sort(planned.begin(), planned.end(),
                   [](const Variant& a, const Variant& b) { return a.cost.seconds < b.cost.seconds; });
  if (planned.size() > kMostThatChange) planned.resize(kMostThatChange);
  return planned;
}

}  // namespace shale::internal
