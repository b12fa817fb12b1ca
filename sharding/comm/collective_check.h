// What every Communicator checks before it enqueues a collective, from this rank's operands alone.
#pragma once

#include "absl/status/status.h"
#include "kernels/tensor.h"

namespace shale {

// Refuse operands that are not bound and contiguous, dtypes and sizes that do not fit together, and a shard that
// overlaps `full` anywhere but in the rank's own slice. `rank` of `size` is the caller's.
absl::Status CheckAllGather(const Tensor& shard, const Tensor& full, int rank, int size);
absl::Status CheckReduceScatterSum(const Tensor& full, const Tensor& shard, int rank, int size);
absl::Status CheckAllReduceSum(const Tensor& data);

}  // namespace shale
