#include "engine/train/straggler_monitor.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace shale {
namespace {

constexpr size_t kMostStragglersListed = 8;

}  // namespace

std::string StragglerMonitor::Add(double step_seconds, absl::Span<const double> waited_seconds) {
  if (waited_seconds.size() < 2) return "";
  slow_steps_.resize(waited_seconds.size());
  const double least = *std::min_element(waited_seconds.begin(), waited_seconds.end());
  std::vector<double> own;
  for (const double waited : waited_seconds) own.push_back(step_seconds - (waited - least));
  std::vector<double> sorted = own;
  const size_t middle = (sorted.size() - 1) / 2;  // Of two ranks, the faster one.
  std::nth_element(sorted.begin(), sorted.begin() + middle, sorted.end());
  const double median = sorted[middle];
  std::vector<std::string> named;
  for (size_t rank = 0; rank < own.size(); ++rank) {
    const bool slow = own[rank] > (1 + kSlower) * median;
    slow_steps_[rank] = slow ? slow_steps_[rank] + 1 : 0;
    if (slow_steps_[rank] == kSteps) named.push_back(absl::StrCat(rank));
  }
  if (named.empty()) return "";
  const size_t listed = std::min(named.size(), kMostStragglersListed);
  const std::string more = named.size() > listed ? absl::StrCat(" and ", named.size() - listed, " more") : "";
  return absl::StrFormat(
      "slow: %s %s%s took more than %.0f %% longer than the median rank in each of %d steps; of the "
      "last step's %.3g s, the median rank worked %.3g s",
      named.size() == 1 ? "rank" : "ranks", absl::StrJoin(named.begin(), named.begin() + listed, ", "), more,
      kSlower * 100, kSteps, step_seconds, median);
}

}  // namespace shale
