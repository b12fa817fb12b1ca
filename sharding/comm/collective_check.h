// What every Communicator checks before it enqueues a collective, from this rank's operands alone; and what it says
// when it ends one.
#pragma once

#include "absl/status/status.h"
#include "kernels/tensor.h"

namespace shale {

// Refuse operands that are not bound and contiguous, dtypes and sizes that do not fit together, and a shard that
// overlaps `full` anywhere but in the rank's own slice. `rank` of `size` is the caller's.
absl::Status CheckAllGather(const Tensor& shard, const Tensor& full, int rank, int size);
absl::Status CheckReduceScatterSum(const Tensor& full, const Tensor& shard, int rank, int size);
absl::Status CheckAllReduceSum(const Tensor& data);

// A time-out in seconds; 0: none.
absl::Status CheckTimeout(double seconds);

// What its peers see of a rank that aborts: Aborted, which marks what only repeats another rank's error; such an error
// is passed on as it is.
absl::Status AbortedBy(int rank, absl::Status reason);

}  // namespace shale
