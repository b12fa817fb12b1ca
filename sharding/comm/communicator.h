// Communicator: the collectives of one group of ranks.
//
// There is one communicator per rank, mesh axis and stream. Every rank enqueues the same collectives in the same order,
// from one thread, so that no two ranks can deadlock. A collective never averages. When a collective has finished, its
// inputs may be overwritten. Sums are computed in fp32 (fp64, int64 for those dtypes), in rank order where a backend
// says so.
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

  // full = the shards of all ranks, in rank order. `full` consists of size() equal parts, and `shard` may be part
  // rank() of it. Any dtype.
  absl::Status AllGather(const Tensor& shard, const Tensor& full, Stream& stream) {
    Meter(shard, full, stream);
    return EnqueueAllGather(shard, full, stream);
  }
  // shard = sum over ranks of part rank() of their `full`. `shard` may be part rank() of this rank's `full`. f32.
  absl::Status ReduceScatterSum(const Tensor& full, const Tensor& shard, Stream& stream) {
    Meter(full, shard, stream);
    return EnqueueReduceScatterSum(full, shard, stream);
  }
  // data = sum over ranks of data, in place. f32, f64 or i64. Equal bits on every rank.
  absl::Status AllReduceSum(const Tensor& data, Stream& stream) {
    Meter(data, data, stream);
    return EnqueueAllReduceSum(data, stream);
  }

  // Registers the memory in which all tensors of this rank's collectives will lie, at the same offsets on every rank.
  // Some communicators then transfer data faster. The launching threads of all ranks call it before the first
  // collective and may wait for each other in it. Call DeregisterMemory when no rank's collective runs any more, before
  // the memory is freed.
  virtual absl::Status RegisterMemory(std::byte* memory, int64_t size_bytes) { return absl::OkStatus(); }
  virtual absl::Status DeregisterMemory() { return absl::OkStatus(); }

  // Makes every collective of every rank of the group, running or later, fail with `reason`. Any thread may call. Only
  // destruction may follow.
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
