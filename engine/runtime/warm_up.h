// Uses the libraries of a backend once, before the arenas are allocated, so that they have loaded and reserved what
// they need by then.
#pragma once

#include "absl/status/status.h"
#include "engine/program/program.h"
#include "kernels/device/device.h"
#include "kernels/op_backend.h"
#include "sharding/comm/communicator.h"

namespace shale {

// Runs each matmul and attention op of `program`, in the form of a first and of a later iteration. Allocates device
// memory for the operands of the largest of them, and frees it at the end. Called on the rank's launching thread. An
// error names the op.
absl::Status WarmUpOps(const StepProgram& program, Ops& ops, Device& device);

// Runs one collective of each kind on a few kilobytes. Called on the launching threads of all ranks at the same time.
absl::Status WarmUpCollectives(Communicator& communicator, Device& device);

}  // namespace shale
