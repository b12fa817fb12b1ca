#include "sharding/comm/gloo/layout.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"

namespace shale {
namespace {

constexpr int kMostRanks = 1 << 15;  // Tags have 16 bits for a rank.

}  // namespace

absl::StatusOr<GlooLayout> GlooLayout::Create(const GlooMembers& members) {
  const std::vector<int>& by_rank = members.process_of_rank;
  if (by_rank.empty() || std::ssize(by_rank) > kMostRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("group ", members.name, " has ", by_rank.size(), " ranks; wanted 1 to ", kMostRanks));
  }
  const std::set<int> unique(by_rank.begin(), by_rank.end());
  if (!unique.contains(members.process)) {
    return absl::InvalidArgumentError(
        absl::StrCat("process ", members.process, " holds no rank of group ", members.name));
  }
  const std::vector<int> processes(unique.begin(), unique.end());
  const auto index = [&](int process) {
    return static_cast<int>(std::lower_bound(processes.begin(), processes.end(), process) - processes.begin());
  };
  GlooLayout layout;
  layout.process_ = index(members.process);
  layout.ranks_of_process_.resize(processes.size());
  for (int rank = 0; rank < std::ssize(by_rank); ++rank) {
    const int process = index(by_rank[rank]);
    layout.process_of_rank_.push_back(process);
    layout.place_of_rank_.push_back(static_cast<int>(layout.ranks_of_process_[process].size()));
    layout.ranks_of_process_[process].push_back(rank);
    if (process != layout.process_) layout.remote_ranks_.push_back(rank);
  }
  for (int process = 0; process < layout.processes(); ++process) {
    if (process != layout.process_) layout.peers_.push_back(process);
    layout.most_ranks_ = std::max<int>(layout.most_ranks_, layout.ranks_of(process).size());
  }
  return layout;
}

}  // namespace shale
