// The checks that every Communicator makes before it enqueues a collective, which look at this rank's operands only;
// and the error of an aborted rank.
#pragma once

#include "absl/status/status.h"
#include "kernels/tensor.h"

namespace shale {

// Return InvalidArgument for operands that are not bound and contiguous, for dtypes and sizes that do not fit together,
// for a sum of a dtype other than f32, f64 and i64, and for a shard that overlaps `full` anywhere but in the rank's own
// part. The caller is rank `rank` of `size`.
absl::Status CheckAllGather(const Tensor& shard, const Tensor& full, int rank, int size);
absl::Status CheckReduceScatterSum(const Tensor& full, const Tensor& shard, int rank, int size);
absl::Status CheckAllReduceSum(const Tensor& data);

// Checks a time-out in seconds. 0 means none.
absl::Status CheckTimeout(double seconds);

// Returns the error that the peers of an aborting rank see. It is Aborted, which marks an error that only repeats
// another rank's. A `reason` that is Aborted already is returned unchanged.
absl::Status AbortedBy(int rank, absl::Status reason);

}  // namespace shale
