// Rendezvous: lets the threads of a group meet to work on one another's memory.
//
// A collective of W ranks, each in its own thread:
//
//     Meet          waits for all ranks, compares what they want  may block for long; the only step that fails
//     work          reads peers' buffers, writes its own          always ends, whatever happens to the group
//     Sync          waits until all ranks have done their work    blocks for the peers' work only
//     [work, Sync]  again, for a collective of two phases
//
// Abort and time-outs end Meet and nothing else. Once all ranks have met, the peers of a rank use its buffers, so the
// rank must not return (and free them) before all are done.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/dtype.h"
#include "kernels/element_range.h"
#include "sharding/comm/agreement.h"
#include "sharding/comm/collective_kind.h"
#include "sharding/comm/communicator.h"

namespace shale {

// Thread-safe. A waiting rank sleeps and never spins, because there may be more ranks than cores.
class Rendezvous {
 public:
  // What a rank sends to each rank of the larger group, and receives from it. Elements of its input and output.
  struct Exchange {
    std::vector<ElementRange> sent, received;
    static std::shared_ptr<const Exchange> Of(const RankPieces& sent, const RankPieces& received) {
      return std::make_shared<const Exchange>(Exchange{.sent = {sent.ranges.begin(), sent.ranges.end()},
                                                       .received = {received.ranges.begin(), received.ranges.end()}});
    }
  };
  // The collective that one rank wants, with its buffers.
  struct Call {
    CollectiveKind kind = CollectiveKind::kAllGather;
    DType dtype = DType::kFloat32;
    int64_t elements = 0;  // Elements of the full vector. 0 for an AllToAll.
    const std::byte* input = nullptr;
    std::byte* output = nullptr;
    CollectiveIssue place;
    std::shared_ptr<const Exchange> exchange;  // Of an AllToAll.

    // Return the call of a collective, and of an AllToAll. `full` is the entire vector, which is `data` for an
    // all-reduce.
    static Call Of(CollectiveKind kind, const Tensor& full, const Tensor& input, const Tensor& output,
                   const CollectiveIssue& place);
    static Call OfAllToAll(const RankPieces& sent, const RankPieces& received, const CollectiveIssue& place);
    CollectiveWish wish() const { return {.kind = kind, .dtype = dtype, .elements = elements, .place = place}; }
  };

  // A rank waits at most `timeout_seconds` for its peers in Meet (see Deadline). 0: forever.
  Rendezvous(int size, double timeout_seconds);
  // Does the same for some ranks of a larger group. `ranks` has their numbers there, for messages. Elsewhere in this
  // interface a rank is the index of one in `ranks`.
  Rendezvous(std::vector<int> ranks, double timeout_seconds);

  int size() const { return static_cast<int>(calls_.size()); }

  // Waits for all ranks. Returns an error if they want different collectives, if a rank does not come in time, or if
  // the group is aborted. All ranks get the same error, in this and in every later Meet.
  absl::Status Meet(int rank, const Call& call);
  // Returns the call of `rank`. Valid from Meet until the last Sync of the collective.
  const Call& call(int rank) const { return calls_[rank]; }
  // Waits until all ranks have called Sync. Never fails.
  void Sync();

  // Makes every Meet, waiting or later, return `reason`. Does nothing if the group has failed already.
  void Abort(absl::Status reason);

 private:
  absl::Status Agreement() const;
  absl::Status AgreementOnPieces() const;
  std::string Missing() const;  // Names the ranks that have not come to the current Meet.
  // Lets the ranks of this round go on. Unlocks `lock`, which holds mutex_, and then wakes them. Each rank keeps its
  // group alive until its own call has returned.
  void EndRound(std::unique_lock<std::mutex>& lock);

  const std::vector<int> ranks_;  // Numbers of the ranks in messages.
  const double timeout_seconds_;
  std::mutex mutex_;
  std::condition_variable round_ended_;
  // The fields below are guarded by mutex_. calls_ is also read without it between Meet and the last Sync, when nobody
  // writes it.
  std::vector<Call> calls_;
  std::vector<bool> present_;  // Whether a rank waits in Meet, by rank.
  int arrived_ = 0;            // Ranks that have come to the current Meet or Sync.
  uint64_t round_ = 0;
  uint64_t meetings_ = 0;
  absl::Status agreement_;  // The result of the last Meet to which all ranks came.
  absl::Status aborted_;
};

}  // namespace shale
