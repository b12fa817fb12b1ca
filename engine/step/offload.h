// OffloadActivations: keeps activations in host memory between forward and backward.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/program/program.h"
#include "engine/program/work_limits.h"

namespace shale {

// Offloads kept activations and the activations between units, if their names match one of `patterns`
// (engine/text/pattern.h). After its last use in forward, such a tensor is copied to a host buffer. Before its first
// use in backward, it is copied into a new buffer of the arena. Both copies run on the copy stream. Between them the
// tensor takes no room in the arena.
//
// A visit is what the compute stream runs for one unit without interruption (engine/step/visits.h). The first buffer is
// held for one more visit, so that no instruction has to wait for the copy, and the second is filled one visit ahead.
// In LAYERED each visit is a loop of its own over the micro-batches. There, both buffers keep their bytes into the next
// loop. So the copy of one micro-batch runs beside the work of the next one, up to the instruction that writes the
// tensor again (or, for the copy back, from the one that reads it last). With runtime.graphs it does not, because the
// graph of a micro-batch ends with its copies.
//
// A tensor stays in the arena if its next use is fewer than four visits later (LAYERED: two), because offloading it
// would save nothing, or if backward writes it. The boundary that a segment keeps is fetched for the visit in which the
// segment's first block runs forward again.
//
// Results do not change. Call it before WorkInPlace and before waits are derived. REQUIRES: CheckStructure accepts the
// program (engine/program/structure.h).
//
// Returns the error of `limits`, which it looks at buffer by buffer, if the work must end. `program` is then
// incomplete.
absl::Status OffloadActivations(StepProgram& program, const std::vector<std::string>& patterns,
                                const WorkLimits& limits = {});

}  // namespace shale
