// Runs an op on zeros, to see that it runs at all.
#pragma once

#include "absl/status/status.h"
#include "kernels/device/device.h"
#include "kernels/op.h"
#include "kernels/op_backend.h"

namespace shale::testing {

// Runs a valid op on operands that lie one after the other in memory of `device` and are all zero. Waits until it has
// finished, and returns the first error of the launch or of the kernel.
absl::Status RunOnZeros(Op op, Ops& ops, Device& device, Stream& stream);

}  // namespace shale::testing
