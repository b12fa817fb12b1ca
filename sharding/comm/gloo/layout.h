// GlooLayout: which process holds which ranks of a group. Processes are numbered from 0 within the group.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sharding/comm/gloo/gloo.h"

namespace shale {

class GlooLayout {
 public:
  // Returns InvalidArgument if this process holds no rank, or if there are too many ranks.
  static absl::StatusOr<GlooLayout> Create(const GlooMembers& members);

  int ranks() const { return static_cast<int>(process_of_rank_.size()); }
  int processes() const { return static_cast<int>(ranks_of_process_.size()); }
  int process() const { return process_; }        // This process.
  int most_ranks() const { return most_ranks_; }  // The largest number of ranks of a process.

  int process_of(int rank) const { return process_of_rank_[rank]; }
  bool is_local(int rank) const { return process_of(rank) == process_; }
  // Returns the index of a rank among those of its process.
  int place_of(int rank) const { return place_of_rank_[rank]; }
  // Returns the ranks of a process, ascending.
  const std::vector<int>& ranks_of(int process) const { return ranks_of_process_[process]; }
  const std::vector<int>& local_ranks() const { return ranks_of(process_); }
  // Return the other processes, and the ranks in them, ascending.
  const std::vector<int>& peers() const { return peers_; }
  const std::vector<int>& remote_ranks() const { return remote_ranks_; }

 private:
  std::vector<int> process_of_rank_, place_of_rank_;
  std::vector<std::vector<int>> ranks_of_process_;
  std::vector<int> peers_, remote_ranks_;
  int process_ = 0, most_ranks_ = 0;
};

}  // namespace shale
