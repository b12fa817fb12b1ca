// Communicator: the collectives of one group of ranks.
//
// One per rank, mesh axis and stream. Every rank enqueues the same collectives in the same order, from one thread; then
// no two ranks can wait for each other. A collective never averages. A finished collective means that its inputs may be
// overwritten. Sums are in fp32 (fp64, int64 for those dtypes), in rank order where a backend says so.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/device/device.h"
#include "kernels/tensor.h"

namespace shale {

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // full = the shards of all ranks, in rank order. `shard` may be slice rank() of `full`. Any dtype.
  absl::Status AllGather(const Tensor& shard, const Tensor& full, Stream& stream) {
    Meter(shard, full, stream);
    return EnqueueAllGather(shard, full, stream);
  }
  // shard = sum over ranks of slice rank() of their `full`. `shard` may be that slice of this rank's `full`. f32.
  absl::Status ReduceScatterSum(const Tensor& full, const Tensor& shard, Stream& stream) {
    Meter(full, shard, stream);
    return EnqueueReduceScatterSum(full, shard, stream);
  }
  // data = sum over ranks of data, in place. f32, f64 or i64. Equal bits on every rank.
  absl::Status AllReduceSum(const Tensor& data, Stream& stream) {
    Meter(data, data, stream);
    return EnqueueAllReduceSum(data, stream);
  }

  // Names the memory that all tensors of this rank's collectives will lie in, at the same offsets on every rank: some
  // carry data faster then. Before the first collective; a call of all ranks, of the launching threads, which may wait
  // for each other. And the end of it, when no rank's collective runs any more, before the memory is freed.
  virtual absl::Status RegisterMemory(std::byte* memory, int64_t size_bytes) { return absl::OkStatus(); }
  virtual absl::Status DeregisterMemory() { return absl::OkStatus(); }

  // Ends every collective, now and from now on, of every rank of the group with `reason`. Any thread. Only destruction
  // may follow.
  virtual void Abort(absl::Status reason) = 0;

 protected:
  virtual absl::Status EnqueueAllGather(const Tensor& shard, const Tensor& full, Stream& stream) = 0;
  virtual absl::Status EnqueueReduceScatterSum(const Tensor& full, const Tensor& shard, Stream& stream) = 0;
  virtual absl::Status EnqueueAllReduceSum(const Tensor& data, Stream& stream) = 0;

 private:
  static void Meter(const Tensor& a, const Tensor& b, Stream& stream) {
    stream.Meter(a.data, a.extent_bytes());
    stream.Meter(b.data, b.extent_bytes());
  }
};

}  // namespace shale
