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
#include "tools/bench/comm.h"

namespace shale {

struct CommCase {
  CollectiveKind kind;
  DType dtype;
};

// A group of ranks. Each rank has memory for two vectors: the second one receives copies and holds the rank's shard.
// Must be used by one thread.
class CommGroup {
 public:
  // Creates n ranks with vectors of up to `largest_bytes`.
  static absl::StatusOr<std::unique_ptr<CommGroup>> Create(const CommKind& kind, int n, int ranks_per_device,
                                                           int64_t largest_bytes);

  int size() const { return static_cast<int>(streams_.size()); }
  const std::string& about() const { return ranks_.about; }

  // Enqueues `calls` collectives on all ranks without waiting in between. Returns the mean seconds of one.
  absl::StatusOr<double> Time(const CommCase& what, int64_t size_bytes, int64_t calls);
  // Does the same with copies: in each call every rank copies `size_bytes`.
  absl::StatusOr<double> TimeCopies(int64_t size_bytes, int64_t calls);

 private:
  using Work = std::function<absl::Status(int rank)>;

  explicit CommGroup(bool thread_per_rank) : thread_per_rank_(thread_per_rank) {}
  absl::Status Enqueue(const CommCase& what, int64_t size_bytes, int rank);
  // Returns the seconds of one call, measured from the start of the first rank to the end of the last.
  absl::StatusOr<double> TimeAll(int64_t calls, const Work& work);
  absl::Status Meet(int rank);
  // Calls work(rank) on one thread per rank. Returns the error of the lowest rank that failed.
  absl::Status OnThreads(const Work& work);

  const bool thread_per_rank_;
  // Declared in this order so that streams are destroyed before what their work uses.
  CommRanks ranks_;
  std::vector<std::unique_ptr<Arena>> arenas_;
  std::vector<std::unique_ptr<Stream>> streams_;
};

}  // namespace shale
