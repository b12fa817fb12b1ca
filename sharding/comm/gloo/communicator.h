// GlooCommunicator: the collectives of one rank of a GlooGroup.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "sharding/comm/communicator.h"
#include "sharding/comm/gloo/group.h"
#include "sharding/comm/gloo/hello.h"
#include "sharding/comm/gloo/transfers.h"

namespace shale {

// The local ranks meet, work and wait for each other as those of an in-process group do (rendezvous.h), so that nobody
// returns while a peer uses its memory. What they work on comes partly from other processes.
class GlooCommunicator : public Communicator {
 public:
  // All local ranks share `group` and `hello`. `chunk_bytes` is the size of the messages of sums, a multiple of 64 and
  // equal in all processes.
  GlooCommunicator(std::shared_ptr<GlooGroup> group, std::shared_ptr<GlooHello> hello, int rank, int64_t chunk_bytes);
  ~GlooCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return layout().ranks(); }
  void SetIssue(const CollectiveIssue& place) override { next_ = place; }
  void Abort(absl::Status reason) override;

 protected:
  absl::Status EnqueueAllGather(const Tensor& shard, const Tensor& full, Stream& stream) override;
  absl::Status EnqueueReduceScatterSum(const Tensor& full, const Tensor& shard, Stream& stream) override;
  absl::Status EnqueueAllReduceSum(const Tensor& data, Stream& stream) override;
  absl::Status EnqueueAllToAll(const RankPieces& sent, const RankPieces& received, Stream& stream) override;

 private:
  // A part of the full vector, in elements.
  struct Part {
    int64_t begin = 0, count = 0;
  };
  // The addresses of a rank's operands, in its process.
  struct Operands {
    const std::byte* input = nullptr;
    const std::byte* output = nullptr;
    const ElementRange* sent = nullptr;  // The pieces of an AllToAll, by rank.
  };

  absl::Status Enqueue(const Rendezvous::Call& call, Stream& stream);
  absl::Status Run(const Rendezvous::Call& call);
  absl::Status RunSmall();
  absl::Status RunLarge();
  absl::Status Agree();
  absl::Status AllGather();
  absl::Status Sum();
  absl::Status SumPart(GlooTransfers& transfers, const std::vector<std::unique_ptr<GlooBuffer>>& staged);
  void CopyFromLocalRanks();
  // An AllToAll over the connections (all_to_all.cc).
  absl::Status AllToAll();
  absl::Status AgreeOnPieces();
  absl::Status ExchangePieces();
  absl::Status CheckPieceFrom(int rank, ElementRange sent);
  void CopyPieces();

  // Of a group whose processes read one another's memory (in_memory.cc).
  absl::Status RunInMemory();
  absl::Status AwaitAll(absl::Status status, int64_t sent_bytes);
  void TakeOperands();
  absl::Status GatherInMemory();
  absl::Status AllToAllInMemory();
  absl::Status SumInMemory();
  absl::Status CopySumsInMemory();
  absl::Status Read(int rank, const std::byte* from, std::byte* to, int64_t size_bytes);
  absl::Status Explained(const absl::Status& status);

  Part PartOf(int rank) const;
  int64_t InputBytes() const;
  const std::byte* SmallInput(int rank) const;
  const Rendezvous::Call& mine() const { return group_->rendezvous().call(place_); }
  const Rendezvous::Call& call_of(int rank) const { return group_->rendezvous().call(layout().place_of(rank)); }
  int64_t element_bytes() const { return SizeOf(mine().dtype); }
  const GlooLayout& layout() const { return group_->layout(); }
  bool leads() const { return place_ == 0; }
  // Returns which local rank receives what a remote rank sends to all.
  int ReceiverOf(int rank) const { return rank % static_cast<int>(layout().local_ranks().size()); }

  const std::shared_ptr<GlooGroup> group_;
  const std::shared_ptr<GlooHello> hello_;
  const int rank_, place_;
  const int64_t chunk_bytes_;
  CollectiveIssue next_;            // Of what is enqueued next.
  uint64_t number_ = 0;             // Collectives so far.
  std::vector<std::byte> staging_;  // [2, remote ranks, chunk_bytes]: what the rank adds up.
  std::vector<Operands> operands_;  // By rank, where processes read one another's memory.
};

}  // namespace shale
