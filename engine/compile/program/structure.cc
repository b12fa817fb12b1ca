#include "absl/strings/str_cat.h"
#include "engine/compile/program/issues.h"
#include "engine/compile/program/program.h"
#include "kernels/check.h"

namespace shale {
namespace {

absl::Status CheckLoops(const StepProgram& program) {
  InstructionId at = 0;
  for (const Loop& loop : program.loops) {
    if (loop.begin != at || loop.end < at || loop.end > std::ssize(program.instructions)) {
      return absl::InternalError(absl::StrCat("a loop covers instructions [", loop.begin, ", ", loop.end,
                                              "); wanted one that begins at ", at, " and ends by ",
                                              program.instructions.size()));
    }
    if (loop.repeat < 1) {
      return absl::InternalError(
          absl::StrCat("the loop at instruction ", at, " repeats ", loop.repeat, " times; wanted at least once"));
    }
    at = loop.end;
  }
  if (at != std::ssize(program.instructions)) {
    return absl::InternalError(
        absl::StrCat("the loops end at instruction ", at, "; wanted ", program.instructions.size()));
  }
  return absl::OkStatus();
}

absl::Status CheckBuffer(const StepProgram& program, const Buffer& buffer) {
  int64_t bytes = 0;
  if (buffer.slot_bytes < 0 || buffer.slots < 1) {
    return absl::InternalError(
        absl::StrCat("buffer ", buffer.name, " has ", buffer.slots, " slots of ", buffer.slot_bytes, " bytes"));
  }
  if (__builtin_mul_overflow(buffer.slot_bytes, buffer.slots, &bytes)) {
    return absl::ResourceExhaustedError(absl::StrCat("buffer ", buffer.name, " needs ", buffer.slots, " slots of ",
                                                     buffer.slot_bytes, " bytes: more than 2^63 bytes"));
  }
  if (buffer.held_until >= std::ssize(program.instructions)) {
    return absl::InternalError(absl::StrCat("buffer ", buffer.name, " is held until instruction ", buffer.held_until,
                                            " of ", program.instructions.size()));
  }
  return absl::OkStatus();
}

absl::Status CheckOperand(const StepProgram& program, const Loop& loop, InstructionId id, absl::string_view name,
                          const Tensor& t) {
  const auto error = [&](const auto&... what) {
    return absl::InternalError(
        absl::StrCat(Describe(program, id), ": operand ", name, " ", t.ToString(), " ", what...));
  };
  const Location& where = t.where;
  if (where.symbol < 0 || where.symbol >= std::ssize(program.buffers)) {
    return error("lies in buffer ", where.symbol, "; there are ", program.buffers.size());
  }
  for (int i = 0; i < t.rank; ++i) {
    if (t.shape[i] < 0 || t.strides[i] < 0) return error("has a negative size or stride");
  }
  const Buffer& buffer = program.buffers[where.symbol];
  const Instruction& instruction = program.instructions[id];
  const auto* transfer = std::get_if<Transfer>(&instruction.action);
  const bool host_op = instruction.stream == StreamId::kHost && std::holds_alternative<Op>(instruction.action);
  const MemoryKind wanted =
      host_op || (transfer != nullptr && &t == &transfer->host) ? MemoryKind::kHost : MemoryKind::kDevice;
  if (buffer.memory != wanted) {
    return error("lies in buffer ", buffer.name, " in ", wanted == MemoryKind::kHost ? "the arena" : "host memory",
                 "; wanted ", wanted == MemoryKind::kHost ? "host memory" : "the arena");
  }
  const int64_t extent = t.extent_bytes();
  if (where.offset_bytes < 0 || where.shard_stride_bytes < 0 || extent > buffer.slot_bytes ||
      where.offset_bytes > buffer.slot_bytes - extent) {
    return error("needs ", extent, " bytes at byte ", where.offset_bytes, " of buffer ", buffer.name, ", which has ",
                 buffer.slot_bytes);
  }
  const int64_t micro_batch = program.instructions[id].micro_batch;
  if (buffer.slots > 1 && (micro_batch < 0 || micro_batch > buffer.slots - loop.repeat)) {
    return error("lies in buffer ", buffer.name, " with a slot for each of ", buffer.slots,
                 " micro-batches; the instruction is of micro-batch ", micro_batch, " in a loop of ", loop.repeat,
                 " iterations");
  }
  return absl::OkStatus();
}

// Checks that both tensors of a transfer are contiguous and equal in size, so that a single copy moves them.
absl::Status CheckTransfer(const StepProgram& program, InstructionId id) {
  const auto* transfer = std::get_if<Transfer>(&program.instructions[id].action);
  if (transfer == nullptr) return absl::OkStatus();
  const Tensor& device = transfer->device;
  const Tensor& host = transfer->host;
  if (device.present() && host.present() && device.contiguous() && host.contiguous() &&
      device.extent_bytes() == host.extent_bytes()) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat(Describe(program, id), ": moves ", device.ToString(), " on the device and ",
                                          host.ToString(), " on the host; wanted contiguous tensors of one size"));
}

absl::Status CheckWait(const StepProgram& program, const Loop& loop, InstructionId id, InstructionId wait) {
  if (wait < 0 || wait >= std::ssize(program.instructions)) {
    return absl::InternalError(absl::StrCat(Describe(program, id), " waits for instruction ", wait, "; there are ",
                                            program.instructions.size()));
  }
  const Instruction& other = program.instructions[wait];
  if (other.stream == program.instructions[id].stream) {
    return absl::InternalError(
        absl::StrCat(Describe(program, id), " waits for ", Describe(program, wait), ", which is on its own stream"));
  }
  const bool iteration_before = wait > id && wait < loop.end && TimesIssued(other, loop) > 1;
  if (wait < id || iteration_before) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(Describe(program, id), " waits for ", Describe(program, wait),
                                          ", which is never issued before it: a cycle"));
}

}  // namespace

std::string Describe(const StepProgram& program, InstructionId id) {
  const Instruction& instruction = program.instructions[id];
  std::string text =
      absl::StrCat("instruction ", id, " (", NameOf(instruction), ", ", ToString(instruction.stream), " stream, ");
  if (instruction.unit >= 0 && instruction.unit < std::ssize(program.units)) {
    absl::StrAppend(&text, "unit ", program.units[instruction.unit], ", ");
  }
  return absl::StrCat(text, ToString(instruction.phase), ")");
}

absl::Status CheckStructure(const StepProgram& program) {
  SHALE_RETURN_IF_ERROR(CheckLoops(program));
  for (const Buffer& buffer : program.buffers) SHALE_RETURN_IF_ERROR(CheckBuffer(program, buffer));
  for (const Loop& loop : program.loops) {
    for (InstructionId id = loop.begin; id < loop.end; ++id) {
      absl::Status status;
      VisitInstruction(program.instructions[id], /*first_iteration=*/false,
                       [&](absl::string_view name, const Tensor& t, Access) {
                         if (status.ok()) status = CheckOperand(program, loop, id, name, t);
                       });
      if (status.ok()) status = CheckTransfer(program, id);
      SHALE_RETURN_IF_ERROR(status);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckWaits(const StepProgram& program) {
  for (const Loop& loop : program.loops) {
    for (InstructionId id = loop.begin; id < loop.end; ++id) {
      for (InstructionId wait : program.instructions[id].waits) {
        SHALE_RETURN_IF_ERROR(CheckWait(program, loop, id, wait));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace shale
