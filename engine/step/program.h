// A step program: the complete list of instructions that one rank runs in one optimizer step, as data.
//
// The same program runs on every rank of a role. It is compiled before anything is allocated (engine/step/compile.h),
// memory is planned from it (engine/memory/plan.h), and the executor (engine/runtime) walks it without deciding
// anything.
//
// Instructions stand in issue order: the order in which a rank's thread enqueues them. Each stream runs its own in that
// order; `waits` order the streams among each other and are derived, with addresses known, by engine/memory/waits.h.
// A section that repeats is a loop over the K micro-batches, one body for all of them: the plan for K = 1000 is the
// plan for K = 1. What differs between the passes of a loop is said by the instruction (`last_pass_only`,
// `first_pass_differs`).
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
  kWorkspace,             // What lives within one pass of a unit.
  kLossWorkspace,
  kLibraryWorkspace,
  kData,      // Tokens and the scalars of a step.
  kSnapshot,  // The copy of the state that a checkpoint is written from.
};
inline constexpr int kBufferCategories = 13;
absl::string_view ToString(BufferCategory category);

// Where a buffer lies: in the rank's arena, or in its pinned host memory, which transfers alone reach.
enum class MemoryKind : uint8_t { kDevice, kHost };

// A piece of memory. Persistent buffers come first, keep their bytes from step to step, and are the same in all
// programs of a job. The others live from their first to their last access in issue order (see memory/lifetimes.h).
struct Buffer {
  std::string name;
  BufferCategory category = BufferCategory::kWorkspace;
  int64_t slot_bytes = 0;
  int64_t slots = 1;  // More than one: a slot for each micro-batch of the step; an instruction uses that of its own.
  bool persistent = false;
  MemoryKind memory = MemoryKind::kDevice;  // Persistent ones lie on the device.
  // Keeps the bytes until this instruction although the last access is earlier, so that the next unit need not wait for
  // the collective or transfer that reads them. -1: no.
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

// What passes between host and device in a step. The host side is StepInputs / StepOutputs of the executor.
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

// Between the arena and the rank's host memory: activations that wait for their backward there (engine/step/offload.h).
// Both sides are contiguous and of one size.
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
  int32_t micro_batch = -1;  // -1: the step. Else 0, plus the pass of its section.
  // Issued in the last pass of its section only (the reductions of DEFERRED). Lifetimes treat it as issued in every
  // pass; waits and checks must not take order from it in a pass in which it is not issued.
  bool last_pass_only = false;
  // The op is that of all passes of its section but the first, in which it is issued as MakeFirst has it.
  bool first_pass_differs = false;
  Tensor scratch;                    // Bytes for the op's library, as an i16 vector; absent: none.
  std::vector<InstructionId> waits;  // On other streams: their latest issue must have finished.
};

// Instructions [begin, end), run `repeat` times, each pass one micro-batch further.
struct Section {
  InstructionId begin = 0;
  InstructionId end = 0;
  int64_t repeat = 1;
};

struct StepProgram {
  std::vector<Buffer> buffers;
  std::vector<Instruction> instructions;
  std::vector<Section> sections;   // Cover the instructions, in order.
  std::vector<std::string> units;  // Names.
  int64_t micro_batches = 1;       // K.
};

// Calls visitor(name, tensor, access) for every present operand of an instruction, scratch (a write) included, as of
// one pass of its section: with `first_pass_differs` the first pass writes what the others read.
template <class Visitor>
void VisitInstruction(const Instruction& instruction, bool first_pass, Visitor&& visitor) {
  const auto present = [&](absl::string_view name, const Tensor& t, Access access) {
    if (t.present()) visitor(name, t, access);
  };
  if (const auto* op = std::get_if<Op>(&instruction.action);
      op != nullptr && instruction.first_pass_differs && first_pass) {
    Op first = *op;
    MakeFirst(first);
    VisitOperands(std::as_const(first), present);
  } else if (op != nullptr) {
    VisitOperands(*op, present);
  } else if (const auto* collective = std::get_if<Collective>(&instruction.action)) {
    const bool scatter = collective->kind == CollectiveKind::kReduceScatterSum;
    present("local", collective->local, scatter ? Access::kWrite : Access::kRead);
    present("full", collective->full,
            scatter ? Access::kRead
                    : (collective->kind == CollectiveKind::kAllGather ? Access::kWrite : Access::kReadWrite));
  } else if (const auto* transfer = std::get_if<Transfer>(&instruction.action)) {
    present("device", transfer->device, transfer->to_host ? Access::kRead : Access::kWrite);
    present("host", transfer->host, transfer->to_host ? Access::kWrite : Access::kRead);
  } else {
    const auto& copy = std::get<HostCopy>(instruction.action);
    present(ToString(copy.item), copy.device, ToHost(copy.item) ? Access::kRead : Access::kWrite);
  }
  present("scratch", instruction.scratch, Access::kWrite);
}

// "MatMul", "AllGather", "ToDevice inputs", "Offload", "Fetch".
std::string NameOf(const Instruction& instruction);

// A readable listing: sections, instructions with stream, phase, unit, micro-batch, operands, waits.
std::string DumpProgram(const StepProgram& program);

}  // namespace shale
