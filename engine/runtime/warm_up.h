// Uses the libraries of a backend once, before the arenas are allocated, so that they have loaded and reserved what
// they need by then.
#pragma once

#include "absl/status/status.h"
#include "engine/memory/plan.h"
#include "engine/program/program.h"
#include "kernels/device/device.h"
#include "kernels/op_backend.h"
#include "sharding/comm/communicator.h"

namespace shale {

// Runs each matmul and attention op of `program` in all forms in which the rank that owns `shard` will issue it: that
// of the first iteration and that of the later ones, and with operands aligned as they will be in the arena. Allocates
// device memory for the operands of the largest of these ops, and frees it at the end. Call it on the rank's launching
// thread. An error names the op.
absl::Status WarmUpOps(const StepProgram& program, const MemoryPlan& plan, int shard, Ops& ops, Device& device);

// Runs one collective of each kind on a few kilobytes. Call it on the launching threads of all ranks at the same time.
absl::Status WarmUpCollectives(Communicator& communicator, Device& device);

}  // namespace shale
