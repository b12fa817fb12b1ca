// Writes a memory plan for PyTorch's viewer of memory snapshots (https://pytorch.org/memory_viz).
#pragma once

#include <cstdint>
#include <string>

#include "engine/memory/plan.h"
#include "engine/program/program.h"

namespace shale {

// Returns a pickle with the contents of torch.cuda.memory._snapshot(): one segment, which is the arena of one rank from
// address 0 on, and the history of one step. The history begins with the allocation of the arena and of the persistent
// buffers. Every transient buffer of the arena is allocated at its planned address before the first instruction that
// needs it (alloc), and freed after the last one (free_requested, free_completed). A loop is shown for its first
// iteration and, if it repeats, once more for its last.
//
// The frames of an event are the buffer and the instruction, innermost first. The viewer shows them like this:
//
//   blocks.3.ffn.gate_up:118:activations kept         name, BufferId and category
//   blocks.3:57:MatMul, forward, compute stream       unit, InstructionId, and what the instruction is
//
// The largest sum of live sizes is MemoryPlan::lower_bound_bytes. Memory outside the arena is not shown. REQUIRES:
// `plan` is the plan of `program`, and `arena_bytes` is at least its peak.
std::string MemorySnapshot(const StepProgram& program, const MemoryPlan& plan, int64_t arena_bytes);

}  // namespace shale
