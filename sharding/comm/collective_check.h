// Checks that every Communicator makes before it enqueues a collective, and the error of an aborted rank. The checks
// look at the operands of the calling rank only.
#pragma once

#include "absl/status/status.h"
#include "kernels/tensor.h"
#include "sharding/comm/communicator.h"

namespace shale {

// Return InvalidArgument for operands that are not bound and contiguous, for dtypes and sizes that do not fit together,
// for a sum of a dtype other than f32, f64 and i64, and for a shard that overlaps `full` but is not exactly part `rank`
// of it. The caller is rank `rank` of `size`.
absl::Status CheckAllGather(const Tensor& shard, const Tensor& full, int rank, int size);
absl::Status CheckReduceScatterSum(const Tensor& full, const Tensor& shard, int rank, int size);
absl::Status CheckAllReduceSum(const Tensor& data);
// Also for pieces that do not lie in their vector, or overlap where they are received, for vectors that overlap, and
// for a rank that sends itself another number of elements than it receives from itself.
absl::Status CheckAllToAll(const RankPieces& sent, const RankPieces& received, int rank, int size);

// Returns InvalidArgument unless `seconds` is a valid time-out. 0 means no time-out.
absl::Status CheckTimeout(double seconds);

// Returns the error that the peers of an aborting rank see. Its code is Aborted, which marks an error that repeats the
// error of another rank. If the code of `reason` is Aborted already, returns `reason` unchanged.
absl::Status AbortedBy(int rank, absl::Status reason);

}  // namespace shale
