// Uses the libraries of a backend once, before the arenas are allocated, so that they have loaded and reserved what
// they need by then.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/compile/memory/plan.h"
#include "engine/compile/program/program.h"
#include "kernels/device/device.h"
#include "kernels/op_backend.h"
#include "sharding/comm/communicator.h"
#include "sharding/mesh.h"

namespace shale {

// Runs the matmuls and attention ops of the programs that are `wanted`, each in all forms in which the rank that owns
// `shard` will issue it: that of the first iteration and that of the later ones, and with operands aligned as they will
// be in the arena. Runs one of those that differ in nothing but where their operands lie. Allocates device memory for
// the operands of the largest of these ops, and frees it at the end. Call it on the rank's launching thread. An error
// names the op.
absl::Status WarmUpOps(absl::Span<const ProgramAndPlan> programs, int shard, absl::FunctionRef<bool(const Op&)> wanted,
                       Ops& ops, Device& device);

// Runs each collective that the programs have on a stream along `axis`, which `communicator` serves, once for each
// kind, dtype and size: NCCL may take memory at the first use of an algorithm, which it chooses by these. Call it on
// the launching threads of all ranks at the same time. Allocates device memory for the largest one, and frees it at the
// end.
absl::Status WarmUpCollectives(absl::Span<const ProgramAndPlan> programs, const Mesh& mesh, MeshAxis axis,
                               StreamId stream, Communicator& communicator, Device& device);

}  // namespace shale
