// Uses the libraries of a backend once, before memory is given out: what they load and reserve they take then.
#pragma once

#include "absl/status/status.h"
#include "engine/program/program.h"
#include "kernels/device/device.h"
#include "kernels/op_backend.h"
#include "sharding/comm/communicator.h"

namespace shale {

// Runs each product and attention op of `program`, as a first iteration and as a later one, on memory of the device
// that holds the largest of them and is given back at the end. On the rank's launching thread. An error names the op.
absl::Status WarmUpOps(const StepProgram& program, Ops& ops, Device& device);

// Runs one of each collective on a few kilobytes; on the launching threads of all ranks at once.
absl::Status WarmUpCollectives(Communicator& communicator, Device& device);

}  // namespace shale
