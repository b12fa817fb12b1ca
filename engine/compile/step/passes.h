// Passes over a compiled program. WorkInPlace lets an op write its output over an input that no later instruction
// needs. OffloadActivations keeps activations in host memory between forward and backward.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/compile/program/program.h"
#include "engine/compile/program/work_limits.h"
#include "kernels/op_backend.h"

namespace shale {

// Merges pairs of transient buffers of the same size, where one op reads the first buffer as its last access and writes
// the second as its first access. The op must be allowed to write its output over that input (Validate accepts the two
// operands as the same view). All operands in the second buffer are then renamed to the first. Results do not change. A
// buffer is not merged if its contents pass from one iteration of a loop to the next, if it has a slot for each
// micro-batch, or if it is held for a later instruction (Buffer::held_until).
//
// The second buffer stays in the list, but no instruction uses it and it takes no bytes. Does nothing if CheckStructure
// (engine/compile/program/structure.h) rejects the program.
void WorkInPlace(StepProgram& program);

// Offloads kept activations and the activations between units, if their names match one of `patterns`
// (engine/strings/pattern.h). After its last use in forward, such a tensor is copied to a host buffer. Before its first
// use in backward, it is copied into a new buffer of the arena. Both copies run on the copy stream. Between them the
// tensor takes no room in the arena.
//
// A visit is what the compute stream runs for one unit without interruption (engine/compile/step/visits.h). The first
// buffer is held for one more visit, so that no instruction has to wait for the copy, and the second is filled one
// visit ahead. In LAYERED each visit is a loop of its own over the micro-batches. There, both buffers keep their bytes
// into the next loop, so the copy of one micro-batch runs beside the work of the next one. The copy out must end before
// the next micro-batch writes the tensor, and the copy back begins when the previous one has read it for the last time.
// With runtime.graphs copies and work do not overlap in this way, because the graph of a micro-batch ends with its
// copies.
//
// A tensor stays in the arena if its next use is fewer than four visits later (LAYERED: two), because offloading it
// would save nothing, or if backward writes it. The boundary that a segment keeps is fetched for the visit in which the
// segment's first block runs forward again.
//
// Results do not change. Call it before WorkInPlace and before waits are derived. REQUIRES: CheckStructure accepts the
// program (engine/compile/program/structure.h).
//
// Returns the error of `limits`, which it looks at buffer by buffer, if the work must end. `program` is then
// incomplete.
absl::Status OffloadActivations(StepProgram& program, const std::vector<std::string>& patterns,
                                const WorkLimits& limits = {});

void OverlapCollectives(StepProgram& program, int64_t prefetch);
void PackOnce(StepProgram& program, const Ops& ops);
void UpdateOnHost(StepProgram& program, absl::Span<const Tensor> host_weights);
void OffloadState(StepProgram& program);
void AddScratch(StepProgram& program, const Ops& ops);

}  // namespace shale
