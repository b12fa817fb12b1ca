// A step program: the complete list of instructions that one rank runs in one optimizer step, as data.
//
// Every rank of a role runs the same program. engine/step compiles it before anything is allocated, engine/memory plans
// its memory, and engine/runtime walks it without deciding anything.
//
// Instructions stand in issue order: the order in which a rank's thread enqueues them. Each stream runs its own
// instructions in that order. `waits` order the streams among each other; engine/memory/waits.h derives them from the
// planned addresses. A loop that repeats runs over the K micro-batches and holds one body for all of them, so that the
// plan for K = 1000 is the plan for K = 1. An instruction says how it differs between the iterations of its loop
// (`last_iteration_only`, `first_iteration_differs`); issues.h is the only code that decodes these two.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/ops.h"
#include "sharding/comm/collective_kind.h"

namespace shale {

using BufferId = int32_t;
using InstructionId = int32_t;

// Lines of the memory report.
enum class BufferCategory : uint8_t {
  kParameterShards,
  kMasterWeights,
  kOptimizerState,
  kGradientShards,
  kUnshardedGradients,
  kGatheredParameters,
  kActivations,           // Kept from forward to backward.
  kActivationBoundaries,  // Inputs and outputs of units, and their gradients.
  kWorkspace,             // Lives within one forward or backward of a unit.
  kLossWorkspace,
  kLibraryWorkspace,
  kData,      // Tokens and the scalars of a step.
  kSnapshot,  // The copy of the state from which a checkpoint is written.
};
inline constexpr int kBufferCategories = 13;
absl::string_view ToString(BufferCategory category);

// Where a buffer lies: in the rank's arena, or in its pinned host memory, which only transfers access.
enum class MemoryKind : uint8_t { kDevice, kHost };

// A piece of memory. Persistent buffers come first, keep their bytes from step to step, and are the same in all
// programs of a job. The others live from their first to their last access in issue order (see lifetimes.h).
struct Buffer {
  std::string name;
  BufferCategory category = BufferCategory::kWorkspace;
  int64_t slot_bytes = 0;
  int64_t slots = 1;  // If more than one, the buffer has a slot for each micro-batch, and an instruction uses its own.
  bool persistent = false;
  MemoryKind memory = MemoryKind::kDevice;  // Persistent buffers lie on the device.
  // The buffer keeps its bytes until this instruction although its last access is earlier, so that the next unit need
  // not wait for the collective or transfer that reads them. -1: the lifetime ends with the last access.
  InstructionId held_until = -1;
  int64_t size_bytes() const { return slot_bytes * slots; }
};

enum class StreamId : uint8_t { kCompute, kGather, kReduce, kCopy };
inline constexpr int kStreams = 4;
absl::string_view ToString(StreamId stream);

enum class Phase : uint8_t { kBegin, kForward, kRecompute, kBackward, kReduce, kUpdate, kEnd };
absl::string_view ToString(Phase phase);

// kAllGather: `local` is this rank's shard, `full` the result. kReduceScatterSum: `full` in, `local` out.
// kAllReduceSum: `full` in place, `local` absent.
struct Collective {
  CollectiveKind kind = CollectiveKind::kAllGather;
  Tensor local;
  Tensor full;
};

// The data that a step copies between host and device. The executor's StepInputs and StepOutputs are the host side.
enum class HostItem : uint8_t {
  kInputs,        // Tokens of the instruction's micro-batch, [B, S] i32, to the device.
  kTargets,       // Likewise its targets.
  kRows,          // [B] i32, to the device.
  kHyper,         // kHyper* of kernels/ops.h, to the device.
  kValidTokens,   // i64, this rank's count over all micro-batches of the step, to the device.
  kTotals,        // kTotal* of kernels/ops.h, to the host.
  kGlobalTokens,  // i64, summed over ranks, to the host.
  kLogits,        // [B, V], to the host.
};
absl::string_view ToString(HostItem item);
constexpr bool ToHost(HostItem item) { return item >= HostItem::kTotals; }

struct HostCopy {
  HostItem item = HostItem::kInputs;
  Tensor device;
};

// Moves a tensor between the arena and the rank's host memory, where offloaded activations wait for their backward
// (engine/step/offload.h). Both sides are contiguous and equal in size.
struct Transfer {
  Tensor device;
  Tensor host;
  bool to_host = false;
};

using Action = std::variant<Op, Collective, HostCopy, Transfer>;

struct Instruction {
  Action action;
  StreamId stream = StreamId::kCompute;
  Phase phase = Phase::kForward;
  int32_t unit = -1;         // Index of the unit it works for; -1: the step.
  int32_t micro_batch = -1;  // -1: the step. Else 0, plus the iteration of its loop.
  // Issued in the last iteration of its loop only (the reductions of DEFERRED). Lifetimes treat it as issued in every
  // iteration; waits and checks must not take order from it in a iteration in which it is not issued.
  bool last_iteration_only = false;
  // The op is that of all iterations of its loop but the first, in which it is issued as MakeFirst has it.
  bool first_iteration_differs = false;
  Tensor scratch;                    // Bytes for the op's library, as an i16 vector; absent: none.
  std::vector<InstructionId> waits;  // On other streams: their latest issue must have finished.
};

// Instructions [begin, end), run `repeat` times. Each iteration works on the next micro-batch.
struct Loop {
  InstructionId begin = 0;
  InstructionId end = 0;
  int64_t repeat = 1;
};

struct StepProgram {
  std::vector<Buffer> buffers;
  std::vector<Instruction> instructions;
  std::vector<Loop> loops;         // Cover the instructions, in order.
  std::vector<std::string> units;  // Names.
  int64_t micro_batches = 1;       // K.
};

// Returns "MatMul", "AllGather", "ToDevice inputs", "Offload" or "Fetch".
std::string NameOf(const Instruction& instruction);

// Returns a readable listing: loops, and instructions with stream, phase, unit, micro-batch, operands and waits.
std::string DumpProgram(const StepProgram& program);

}  // namespace shale
