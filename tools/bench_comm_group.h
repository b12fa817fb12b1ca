// The ranks that bench_comm measures, each with memory and a stream.
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
#include "tools/bench_comm.h"

namespace shale {

struct CommCase {
  CollectiveKind kind;
  DType dtype;
};

// A rank's memory: a vector, and room for another one, of which shards are parts. One thread.
class CommGroup {
 public:
  static absl::StatusOr<std::unique_ptr<CommGroup>> Create(const CommKind& kind, int n, int ranks_per_device,
                                                           int64_t largest_bytes);

  int size() const { return static_cast<int>(streams_.size()); }
  const std::string& about() const { return ranks_.about; }

  // Seconds of each of `calls` collectives, enqueued in one go on all ranks, on average.
  absl::StatusOr<double> Time(const CommCase& what, int64_t size_bytes, int64_t calls);
  // The same, of every rank copying `size_bytes`.
  absl::StatusOr<double> TimeCopies(int64_t size_bytes, int64_t calls);

 private:
  using Work = std::function<absl::Status(int rank)>;

  explicit CommGroup(bool thread_per_rank) : thread_per_rank_(thread_per_rank) {}
  absl::Status Enqueue(const CommCase& what, int64_t size_bytes, int rank);
  // From the first rank's beginning to the last one's end.
  absl::StatusOr<double> TimeAll(int64_t calls, const Work& work);
  absl::Status Meet(int rank);
  // Calls work(rank) on a thread for each; the first error.
  absl::Status OnThreads(const Work& work);

  const bool thread_per_rank_;
  // Streams end before what their work uses.
  CommRanks ranks_;
  std::vector<std::unique_ptr<Arena>> arenas_;
  std::vector<std::unique_ptr<Stream>> streams_;
};

}  // namespace shale
