// Uses the libraries of a backend once, before the arenas are allocated, so that they have loaded and reserved what
// they need by then.
#pragma once

#include "absl/status/status.h"
#include "engine/program/program.h"
#include "kernels/device/device.h"
#include "kernels/op_backend.h"
#include "sharding/comm/communicator.h"

namespace shale {

// Runs each matmul and attention op of `program`, in the form of the first iteration and in that of the later ones.
// Allocates device memory for the operands of the largest of these ops, and frees it at the end. Call it on the rank's
// launching thread. An error names the op.
absl::Status WarmUpOps(const StepProgram& program, Ops& ops, Device& device);

// Runs one collective of each kind on a few kilobytes. Call it on the launching threads of all ranks at the same time.
absl::Status WarmUpCollectives(Communicator& communicator, Device& device);

}  // namespace shale
