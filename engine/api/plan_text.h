// Writes the plan of a job, or why it has none: as text for people, as messages and JSON for programs.
#pragma once

#include <string>

#include "engine/api/job.h"
#include "engine/api/plan.h"

namespace shale {

struct Prediction;    // engine/plan/time/prediction.h
struct SearchResult;  // engine/plan/search/search.h

// Returns the plan as `train` prints it and plan.txt stores it: model, batch, strategy and accumulation with the
// reason, communication, arithmetic, and the memory report. The text ends in a newline.
std::string PlanText(const Job& job, const JobPlan& plan);

// Returns the training step's program, instruction by instruction, as --dump_program prints it. With runtime.graphs,
// the text also says what each captured graph does. It ends in a newline.
std::string ProgramText(const Job& job, const JobPlan& plan);

// Returns the plan of a step for PyTorch's viewer of memory snapshots (https://pytorch.org/memory_viz): a pickle with
// the contents of torch.cuda.memory._snapshot(). It has one segment, which is the arena of one rank from address 0 on,
// and the history of one step. The history begins with the allocation of the arena and of the persistent buffers. Every
// transient buffer of the arena is allocated at its planned address before the first instruction that needs it (alloc),
// and freed after the last one (free_requested, free_completed). A loop is shown for its first iteration and, if it
// repeats, once more for its last.
//
// The frames of an event are the buffer and the instruction, innermost first. The viewer shows them like this:
//
//   blocks.3.ffn.gate_up:118:activations kept         name, BufferId and category
//   blocks.3:57:MatMul, forward, compute stream       unit, InstructionId, and what the instruction is
//
// The largest sum of live sizes is MemoryPlan::lower_bound_bytes. Memory outside the arena is not shown.
std::string MemorySnapshot(const JobPlan& plan);

// How much of the training program is written. Each value includes what those before it write.
enum class PlanDetail {
  kSummary,       // Nothing: some kilobytes in all.
  kBuffers,       // Its buffers and loops: some hundred bytes for each buffer.
  kInstructions,  // Its instructions, each with some hundred bytes.
};

// What a plan says of time. Borrowed; null: nothing.
struct PlanSeconds {
  const Prediction* step = nullptr;
  const SearchResult* search = nullptr;
};

// Return a binary shale.proto.Plan (proto/plan.proto): of a verdict, or of a job that has this plan.
std::string PlanMessage(const Admission& admission, PlanDetail detail = PlanDetail::kSummary,
                        const PlanSeconds& seconds = {});
std::string PlanMessage(const Job& job, const JobPlan& plan, PlanDetail detail = PlanDetail::kSummary);

// Return the same message as one JSON object, which ends with a newline. Its keys are the names of the message's
// fields. Unlike protobuf's own JSON it writes 64-bit integers as numbers, fields that are absent as null, and fields
// that are 0 or empty. It leaves out the keys of what `detail` does not ask for.
std::string PlanJson(const Admission& admission, PlanDetail detail = PlanDetail::kSummary,
                     const PlanSeconds& seconds = {});
std::string PlanJson(const Job& job, const JobPlan& plan, PlanDetail detail = PlanDetail::kSummary);

}  // namespace shale
