// CommGroup: the ranks that the comm bench measures, each with memory and a stream.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/dtype.h"
#include "sharding/comm/collective_kind.h"
#include "sharding/comm/control_plane.h"
#include "tools/bench/comm.h"

namespace shale {

struct CommCase {
  CollectiveKind kind;
  DType dtype;
};

// A group of ranks, in one or in several processes, which make the same calls. Each rank has memory for two vectors:
// the second one receives copies and holds the rank's shard. Must be used by one thread.
class CommGroup {
 public:
  // Creates those of n ranks that are in this process, with vectors of up to `largest_bytes`. Borrows `control`.
  static absl::StatusOr<std::unique_ptr<CommGroup>> Create(const CommKind& kind, int n, int ranks_per_device,
                                                           int64_t largest_bytes, ControlPlane& control);

  int size() const { return size_; }  // Ranks in all processes.
  const std::string& about() const { return ranks_.about; }

  // Enqueues `calls` collectives on all ranks without waiting in between. Returns the mean seconds of one.
  absl::StatusOr<double> Time(const CommCase& what, int64_t size_bytes, int64_t calls);
  // Does the same with copies: in each call every rank copies `size_bytes`.
  absl::StatusOr<double> TimeCopies(int64_t size_bytes, int64_t calls);

 private:
  using Work = std::function<absl::Status(int rank)>;

  CommGroup(int size, bool thread_per_rank, ControlPlane& control)
      : size_(size), thread_per_rank_(thread_per_rank), control_(control) {}
  int here() const { return static_cast<int>(streams_.size()); }
  absl::Status Enqueue(const CommCase& what, int64_t size_bytes, int rank);
  // Returns the seconds of one call, measured from the start of the first rank to the end of the last.
  absl::StatusOr<double> TimeAll(int64_t calls, const Work& work);
  absl::Status Meet(int rank);
  // Returns the time from the first begin to the last end in all processes. They are on one host and have one clock.
  absl::StatusOr<int64_t> Longest(int64_t begin, int64_t end);
  // Calls work(rank) on one thread per rank. Returns the error of the lowest rank that failed.
  absl::Status OnThreads(const Work& work);

  const int size_;
  const bool thread_per_rank_;
  ControlPlane& control_;
  // Declared in this order so that streams are destroyed before what their work uses.
  CommRanks ranks_;
  std::vector<std::unique_ptr<Arena>> arenas_;
  std::vector<std::unique_ptr<Stream>> streams_;
};

}  // namespace shale
