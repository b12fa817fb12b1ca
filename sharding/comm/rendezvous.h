// Rendezvous: where the threads of a group meet to work on one another's memory.
//
// A collective of W ranks, each in its own thread:
//
//     Meet        all have arrived, and want the same thing     blocks; the only place that fails
//     work        reads peers' buffers, writes own ones         finite, whatever becomes of the group
//     Sync        all have done that                            blocks for the peers' work only
//     [work, Sync]
//
// Abort and time-outs end Meet and nothing else: once all have met, every rank's buffers are in use by its peers, so a
// rank must not return (and free them) before all are done.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/dtype.h"
#include "sharding/comm/collective_kind.h"

namespace shale {

// Thread-safe. Blocks, never spins: there are more ranks than cores.
class Rendezvous {
 public:
  // What one rank brings.
  struct Call {
    CollectiveKind kind = CollectiveKind::kAllGather;
    DType dtype = DType::kFloat32;
    int64_t elements = 0;  // Of the whole vector.
    const std::byte* input = nullptr;
    std::byte* output = nullptr;
  };

  // A rank waits at most `timeout_seconds` for its peers in Meet (Patience); 0: for ever.
  Rendezvous(int size, double timeout_seconds);

  int size() const { return static_cast<int>(calls_.size()); }

  // Waits for all ranks. An error, the same on every rank and from then on, when they want different things, when one
  // does not come in time, or when the group is aborted.
  absl::Status Meet(int rank, const Call& call);
  // What `rank` brought. From Meet until the call's last Sync.
  const Call& call(int rank) const { return calls_[rank]; }
  // Waits until all ranks have come as far.
  void Sync();

  // Ends every Meet, now and from now on, with `reason`. The first reason stays.
  void Abort(absl::Status reason);

 private:
  absl::Status Agreement() const;
  std::string Missing() const;
  void EndRound();

  const double timeout_seconds_;
  std::mutex mutex_;
  std::condition_variable round_ended_;
  // Guarded by mutex_; calls_ is read without it between Meet and Sync, when nobody writes.
  std::vector<Call> calls_;
  std::vector<bool> present_;  // By rank: waits in Meet.
  int arrived_ = 0;            // Ranks in the current round of Meet or Sync.
  uint64_t round_ = 0;
  uint64_t meetings_ = 0;
  absl::Status agreement_;  // Of the last Meet in which all arrived.
  absl::Status aborted_;
};

}  // namespace shale
