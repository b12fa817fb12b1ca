// Communicator: runs the collectives of one group of ranks.
//
// There is one communicator per rank, mesh axis and stream. Every rank enqueues the same collectives in the same order,
// from one thread, so that no two ranks can deadlock. Enqueueing a collective may wait for the peers to enqueue it, but
// not for its end. A collective has finished when its stream has passed it. From then on its inputs may be overwritten.
// A collective never averages. Sums are computed in the element type, in rank order where an implementation says so.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/device/device.h"
#include "kernels/element_range.h"
#include "kernels/tensor.h"
#include "sharding/comm/collective_kind.h"

namespace shale {

// Parts of a vector, one for each rank of a group, in rank order. They may have any sizes and places, and be empty.
struct RankPieces {
  Tensor vector;
  absl::Span<const ElementRange> ranges;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Computes full = the shards of all ranks, in rank order. `full` consists of size() equal parts, and `shard` may be
  // part rank() of it. Takes any dtype.
  absl::Status AllGather(const Tensor& shard, const Tensor& full, Stream& stream) {
    Meter(shard, full, stream);
    return EnqueueAllGather(shard, full, stream);
  }
  // Computes shard = sum over all ranks of part rank() of their `full`. `shard` may be part rank() of this rank's
  // `full`. Takes f32, f64 and i64.
  absl::Status ReduceScatterSum(const Tensor& full, const Tensor& shard, Stream& stream) {
    Meter(full, shard, stream);
    return EnqueueReduceScatterSum(full, shard, stream);
  }
  // Computes data = sum over all ranks of their `data`, in place. Every rank gets equal bits. Takes f32, f64 and i64.
  absl::Status AllReduceSum(const Tensor& data, Stream& stream) {
    Meter(data, data, stream);
    return EnqueueAllReduceSum(data, stream);
  }
  // Sends piece r of `sent` to rank r, and receives piece r of `received` from it, for every rank r, this one included.
  // What a rank sends to another is as large as what that one receives from it. Received pieces do not overlap, nor do
  // the two vectors. Takes any dtype. The ranges are used only during the call.
  absl::Status AllToAll(const RankPieces& sent, const RankPieces& received, Stream& stream) {
    Meter(sent.vector, received.vector, stream);
    return EnqueueAllToAll(sent, received, stream);
  }

  // Says at which place of the program the caller enqueues its next collective. Where the ranks of a group compare what
  // they enqueue, ranks at different places then fail with InvalidArgument, as ranks with different collectives do.
  virtual void SetIssue(const CollectiveIssue& place) {}

  // Registers the memory in which all tensors of this rank's collectives will lie, at the same offsets on every rank.
  // Some communicators then transfer data faster. The launching thread of every rank must call it before the first
  // collective; the call may wait for the other ranks. Call DeregisterMemory when no collective of any rank runs any
  // more, before the memory is freed.
  virtual absl::Status RegisterMemory(std::byte* memory, int64_t size_bytes) { return absl::OkStatus(); }
  virtual absl::Status DeregisterMemory() { return absl::OkStatus(); }

  // Makes every collective of every rank of the group, running or later, fail with `reason`. Any thread may call it.
  // Afterwards the communicator may only be destroyed.
  virtual void Abort(absl::Status reason) = 0;

 protected:
  virtual absl::Status EnqueueAllGather(const Tensor& shard, const Tensor& full, Stream& stream) = 0;
  virtual absl::Status EnqueueReduceScatterSum(const Tensor& full, const Tensor& shard, Stream& stream) = 0;
  virtual absl::Status EnqueueAllReduceSum(const Tensor& data, Stream& stream) = 0;
  virtual absl::Status EnqueueAllToAll(const RankPieces& sent, const RankPieces& received, Stream& stream) = 0;

 private:
  static void Meter(const Tensor& a, const Tensor& b, Stream& stream) {
    stream.Meter(a.data, a.extent_bytes());
    stream.Meter(b.data, b.extent_bytes());
  }
};

}  // namespace shale
