// RendezvousCommunicator: the collectives of ranks that reach one another's memory.
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

// What such communicators have in common; where the ranks meet, and what copies and sums, is theirs. Each element of a
// sum is formed by one rank, in rank order.
class RendezvousCommunicator : public Communicator {
 public:
  RendezvousCommunicator(std::shared_ptr<Rendezvous> rendezvous, int rank);
  ~RendezvousCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return rendezvous_->size(); }
  void Abort(absl::Status reason) override;

 protected:
  absl::Status EnqueueAllGather(const Tensor& shard, const Tensor& full, Stream& stream) final;
  absl::Status EnqueueReduceScatterSum(const Tensor& full, const Tensor& shard, Stream& stream) final;
  absl::Status EnqueueAllReduceSum(const Tensor& data, Stream& stream) final;

  // Has the stream do `call`: Meet, Work, Sync. The operands have been checked.
  virtual absl::Status Enqueue(const Rendezvous::Call& call, Stream& stream) = 0;
  // This rank's part of what all have met for, between Meet and the last Sync. Comes to every Barrier, whatever fails.
  absl::Status Work(Stream& stream);

  // Of Work; of bytes and elements more than none. What they are given is gone when they return.
  virtual absl::Status Copy(std::byte* to, const std::byte* from, int64_t size_bytes, Stream& stream) = 0;
  virtual absl::Status Sum(DType dtype, absl::Span<const std::byte* const> inputs, std::byte* out, int64_t elements,
                           Stream& stream) = 0;
  // What follows comes after what all ranks did before; peers count on this rank to come here.
  virtual absl::Status Barrier(Stream& stream) = 0;

  Rendezvous& rendezvous() { return *rendezvous_; }

 private:
  absl::Status AllGather(Stream& stream);
  absl::Status ReduceScatter(Stream& stream);
  absl::Status AllReduce(Stream& stream);
  absl::Status SumSlice(int64_t begin, int64_t count, std::byte* out, Stream& stream);
  const Rendezvous::Call& call(int rank) const { return rendezvous_->call(rank); }
  const Rendezvous::Call& mine() const { return call(rank_); }

  const std::shared_ptr<Rendezvous> rendezvous_;
  const int rank_;
  std::vector<const std::byte*> inputs_;  // By rank; Work's, kept to allocate nothing in a collective.
};

}  // namespace shale
