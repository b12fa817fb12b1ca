// A step program: the complete list of instructions that one rank runs in one optimizer step, as data.
//
// All ranks run the same program. engine/compile/step compiles it before anything is allocated, engine/compile/memory
// plans its memory, and engine/run/runtime executes it without making any decisions.
//
// Instructions are stored in issue order: the order in which a rank's thread enqueues them. Each stream runs its own
// instructions in that order. `waits` order instructions on different streams; engine/compile/memory/plan.h derives
// them from the planned addresses. A loop with several iterations has one for each of the K micro-batches. It stores
// one body for all of them, so that the plan for K = 1000 is the plan for K = 2, except for buffers with a slot per
// micro-batch. Two fields of an instruction (`last_iteration_only`, `first_iteration_differs`) say how it differs
// between the iterations of its loop; issues.h defines them.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/compile/program/step_item.h"
#include "kernels/op.h"
#include "sharding/comm/collective_kind.h"
#include "sharding/mesh.h"

namespace shale {

using BufferId = int32_t;
using InstructionId = int32_t;

// What a buffer is for. The memory report has a line for each category.
enum class BufferCategory : uint8_t {
  kParameterShards,
  kFrozenParameters,  // Of parameters that do not train.
  kMasterWeights,
  kOptimizerState,
  kGradientShards,
  kUnshardedGradients,
  kGatheredParameters,
  kWidenedParameters,     // Weights as ops use them, if they are stored or kept in another form: widened, or in fp8.
  kActivations,           // Kept from forward to backward.
  kActivationBoundaries,  // Inputs and outputs of units, and their gradients.
  kWorkspace,             // Used only within one forward, backward or update of a unit.
  kLossWorkspace,
  kLibraryWorkspace,
  kData,      // Tokens, and the scalars of a step.
  kSnapshot,  // A copy of the state, from which a checkpoint is written.
  kCache,     // Keys and values of the tokens so far, while text is generated.
};
inline constexpr int kBufferCategories = static_cast<int>(BufferCategory::kCache) + 1;
absl::string_view ToString(BufferCategory category);

// Where a buffer lies: in the rank's arena, or in its pinned host memory, which only transfers and the ops of
// StreamId::kHost access.
enum class MemoryKind : uint8_t { kDevice, kHost };

// A piece of memory. Most buffers live from their first to their last access in issue order (see live_bytes.h).
// Persistent buffers keep their contents from step to step. Those of the job's state come first, and are the same in
// all programs of a job. Caches come after them, and are the same in all programs that generate; all other programs put
// other buffers there.
struct Buffer {
  std::string name;
  BufferCategory category = BufferCategory::kWorkspace;
  int64_t slot_bytes = 0;
  int64_t slots = 1;  // If > 1: one slot per micro-batch. An instruction uses that of its micro-batch.
  bool persistent = false;
  MemoryKind memory = MemoryKind::kDevice;
  // The buffer keeps its bytes until this instruction, although its last access may be earlier, so that the next unit
  // does not have to wait for the collective or transfer that reads them. -1: the lifetime ends with the last access.
  InstructionId held_until = -1;
  int64_t size_bytes() const { return slot_bytes * slots; }
};

// Ops of all streams but kHost run on the device and access the arena. Those of kHost run on the host and access host
// memory alone: updates on the host (engine/compile/step/passes.h).
enum class StreamId : uint8_t { kCompute, kGather, kReduce, kCopy, kHost };
inline constexpr int kStreams = static_cast<int>(StreamId::kHost) + 1;
absl::string_view ToString(StreamId stream);

enum class Phase : uint8_t { kBegin, kForward, kRecompute, kBackward, kReduce, kUpdate, kEnd };
absl::string_view ToString(Phase phase);

// A collective of the ranks of one group along `axis`. kAllGather: reads `local`, this rank's shard, and writes `full`.
// kReduceScatterSum: reads `full` and writes `local`. kAllReduceSum: updates `full` in place; `local` is absent.
// kAllToAll: both are matrices with a row for each rank; sends row r of `full` to rank r and writes what that one sends
// to row r of `local`.
struct Collective {
  CollectiveKind kind = CollectiveKind::kAllGather;
  MeshAxis axis = MeshAxis::kShard;
  Tensor local;
  Tensor full;
};

// Copies data of the step between the host and the device. On the host it is in the executor's StepInputs and
// StepOutputs.
struct StepItemCopy {
  StepItem item = StepItem::kInputs;
  Tensor device;
};

// Copies a tensor between the arena and the rank's host memory, which holds offloaded activations until their backward,
// offloaded state between its uses, and what updates on the host read and write (engine/compile/step/passes.h). Both
// tensors are contiguous and have the same size.
struct Transfer {
  Tensor device;
  Tensor host;
  bool to_host = false;
};

using Action = std::variant<Op, Collective, StepItemCopy, Transfer>;

struct Instruction {
  Action action;
  StreamId stream = StreamId::kCompute;
  Phase phase = Phase::kForward;
  int32_t unit = -1;         // Index of the unit that it works for, or -1 if it works for the step.
  int32_t micro_batch = -1;  // -1 if it works for the step. Otherwise iteration i works on micro_batch + i.
  // Whether the instruction is issued in the last iteration of its loop only, like the reductions of NO_SYNC.
  // Lifetimes treat it as issued in every iteration. Waits and checks must not assume any order from it in iterations
  // that do not issue it.
  bool last_iteration_only = false;
  // Whether the first iteration of its loop issues a different form of the op: the one that MakeFirst turns it into.
  // `action` is the form that all other iterations issue.
  bool first_iteration_differs = false;
  Tensor scratch;                    // Memory for the op's library, as an i16 vector. Absent if it needs none.
  absl::string_view kernels;         // Ops::KernelsOf of the op, once it has its scratch: a literal.
  std::vector<InstructionId> waits;  // Instructions on other streams. Their latest issue must have finished.
};

// Instructions [begin, end), which run `repeat` times. Each iteration works on the next micro-batch.
struct Loop {
  InstructionId begin = 0;
  InstructionId end = 0;
  int64_t repeat = 1;
};

struct StepProgram {
  std::vector<Buffer> buffers;
  std::vector<Instruction> instructions;
  std::vector<Loop> loops;         // Cover all instructions, in order.
  std::vector<std::string> units;  // Names.
  int64_t micro_batches = 1;       // K.
};

// Returns whether an instruction of the program is on this stream.
bool UsesStream(const StepProgram& program, StreamId stream);

// Returns for example "MatMul", "AllGather", "ToDevice inputs", "Offload" or "Fetch".
std::string NameOf(const Instruction& instruction);

// Returns a readable listing: loops, and instructions with stream, phase, unit, micro-batch, operands and waits.
std::string DumpProgram(const StepProgram& program);

// Checks the rules that every program must satisfy before other code works on it: that the loops cover the instructions
// in order, that sizes are not negative and the bytes of each buffer fit int64, that operands name existing buffers in
// the right kind of memory and lie inside them, that transfers move contiguous tensors of equal size, and that slots
// exist for every micro-batch that uses one. The error names the buffer, or the instruction and the operand.
absl::Status CheckStructure(const StepProgram& program);

// Checks that every wait names an instruction of another stream that is issued earlier: before it in the program, or in
// the preceding iteration of the same loop. Waits then form no cycle. REQUIRES: CheckStructure accepts the program.
absl::Status CheckWaits(const StepProgram& program);

// Returns for example "instruction 57 (MatMul, compute stream, unit blocks.3, backward)".
std::string Describe(const StepProgram& program, InstructionId id);

}  // namespace shale
