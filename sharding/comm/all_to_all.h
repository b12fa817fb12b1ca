#pragma once

#include "absl/status/status.h"
#include "kernels/device/device.h"
#include "kernels/tensor.h"
#include "sharding/comm/communicator.h"

namespace shale {

// Enqueues the AllToAll that sends row r of `from_WN` to rank r of the group, and receives row r of `to_WN` from it.
// Both have a row for each of the W ranks. Rows may be any distance apart, but each is contiguous.
absl::Status AllToAllRows(Communicator& communicator, const Tensor& from_WN, const Tensor& to_WN, Stream& stream);

}  // namespace shale
