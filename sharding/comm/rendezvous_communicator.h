// RendezvousCommunicator: implements the collectives of ranks that can access one another's memory.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/device/device.h"
#include "kernels/dtype.h"
#include "sharding/comm/communicator.h"
#include "sharding/comm/rendezvous.h"

namespace shale {

// The common base of such communicators. A subclass decides in which threads the ranks meet, and how to copy and sum.
// One rank computes each element of a sum, in rank order.
class RendezvousCommunicator : public Communicator {
 public:
  RendezvousCommunicator(std::shared_ptr<Rendezvous> rendezvous, int rank);
  // Aborts the group.
  ~RendezvousCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return rendezvous_->size(); }
  void SetIssue(const CollectiveIssue& place) override { place_ = place; }
  void Abort(absl::Status reason) override;

 protected:
  absl::Status EnqueueAllGather(const Tensor& shard, const Tensor& full, Stream& stream) final;
  absl::Status EnqueueReduceScatterSum(const Tensor& full, const Tensor& shard, Stream& stream) final;
  absl::Status EnqueueAllReduceSum(const Tensor& data, Stream& stream) final;
  absl::Status EnqueueAllToAll(const RankPieces& sent, const RankPieces& received, Stream& stream) final;

  // Enqueues `call` on the stream: Meet, Work, Sync. The operands have been checked.
  virtual absl::Status Enqueue(const Rendezvous::Call& call, Stream& stream) = 0;
  // Does this rank's part of the collective, between Meet and the last Sync. Calls every Barrier, even after an error.
  absl::Status Work(Stream& stream);

  // Copy `from` to `to`, and sum `inputs` into `out`, on the stream. Work calls them with sizes above 0. `inputs`
  // itself is valid only during the call.
  virtual absl::Status Copy(std::byte* to, const std::byte* from, int64_t size_bytes, Stream& stream) = 0;
  virtual absl::Status Sum(DType dtype, absl::Span<const std::byte* const> inputs, std::byte* out, int64_t elements,
                           Stream& stream) = 0;
  // Makes the work that follows on every rank start after all ranks have done the work before their Barrier. Every rank
  // must call it, because its peers wait for it.
  virtual absl::Status Barrier(Stream& stream) = 0;

  Rendezvous& rendezvous() { return *rendezvous_; }

 private:
  absl::Status AllGather(Stream& stream);
  absl::Status ReduceScatter(Stream& stream);
  absl::Status AllReduce(Stream& stream);
  absl::Status AllToAll(Stream& stream);
  absl::Status SumPart(int64_t begin, int64_t count, std::byte* out, Stream& stream);
  const Rendezvous::Call& call(int rank) const { return rendezvous_->call(rank); }
  const Rendezvous::Call& mine() const { return call(rank_); }

  const std::shared_ptr<Rendezvous> rendezvous_;
  const int rank_;
  CollectiveIssue place_;
  std::vector<const std::byte*> inputs_;  // Inputs of a sum, by rank. A member, so that a collective allocates nothing.
};

}  // namespace shale
