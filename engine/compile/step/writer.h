// ProgramWriter: appends buffers, instructions and loops to a StepProgram.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "engine/compile/program/program.h"

namespace shale {

// The fields that all instructions emitted for one purpose have in common.
struct EmitContext {
  StreamId stream = StreamId::kCompute;
  Phase phase = Phase::kBegin;
  int unit = -1;
  int micro_batch = -1;
  bool once_a_step = false;  // In a loop over micro-batches, they run in its last iteration only.
};

class ProgramWriter {
 public:
  // Adds a buffer and returns its number.
  BufferId AddBuffer(std::string name, BufferCategory category, int64_t slot_bytes, int64_t slots = 1,
                     bool persistent = false, MemoryKind memory = MemoryKind::kDevice) {
    program_.buffers.push_back({.name = std::move(name),
                                .category = category,
                                .slot_bytes = slot_bytes,
                                .slots = slots,
                                .persistent = persistent,
                                .memory = memory});
    return static_cast<BufferId>(program_.buffers.size()) - 1;
  }
  // Adds a buffer whose slots have the size of `like`, and returns `like` placed at its start.
  Tensor AddTensor(std::string name, BufferCategory category, Tensor like, int64_t slots = 1, bool persistent = false,
                   MemoryKind memory = MemoryKind::kDevice) {
    like.where = {.symbol = AddBuffer(std::move(name), category, like.extent_bytes(), slots, persistent, memory)};
    return like;
  }

  // Appends an instruction. `first_iteration_differs` is the field of the instruction; if it is set, `action` is the op
  // of the later iterations.
  void Emit(const EmitContext& context, Action action, bool first_iteration_differs = false) {
    Instruction instruction;
    instruction.action = std::move(action);
    instruction.stream = context.stream;
    instruction.first_iteration_differs = first_iteration_differs;
    instruction.phase = context.phase;
    instruction.unit = context.unit;
    instruction.micro_batch = context.micro_batch;
    instruction.last_iteration_only = context.once_a_step && in_loop();
    program_.instructions.push_back(std::move(instruction));
  }

  // Returns whether a tensor lies in host memory. An absent one does not.
  bool IsOnHost(const Tensor& t) const {
    return t.present() && program_.buffers[t.where.symbol].memory == MemoryKind::kHost;
  }

  // Ends the open loop and begins one that runs `repeat` times. Loops without instructions are left out.
  void BeginLoop(int64_t repeat) {
    CloseLoop();
    repeat_ = repeat;
  }

  // Returns whether what is emitted now runs several times, once for each micro-batch.
  bool in_loop() const { return repeat_ > 1; }
  StepProgram& program() { return program_; }
  // Ends the open loop and returns the program. The writer must not be used afterwards.
  StepProgram Finish() {
    CloseLoop();
    return std::move(program_);
  }

 private:
  void CloseLoop() {
    const InstructionId begin = program_.loops.empty() ? 0 : program_.loops.back().end;
    const InstructionId end = static_cast<InstructionId>(program_.instructions.size());
    if (begin < end) program_.loops.push_back({begin, end, repeat_});
  }
  StepProgram program_;
  int64_t repeat_ = 1;
};

}  // namespace shale
