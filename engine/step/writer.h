// ProgramWriter: appends buffers, instructions and sections to a StepProgram.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "engine/step/program.h"
#include "kernels/op_backend.h"

namespace shale {

// What all instructions emitted for one purpose have in common.
struct EmitContext {
  StreamId stream = StreamId::kCompute;
  Phase phase = Phase::kBegin;
  int unit = -1;
  int micro_batch = -1;
};

class ProgramWriter {
 public:
  // `ops` is asked for sizes; borrowed.
  explicit ProgramWriter(const Ops& ops) : ops_(ops) {}
  const Ops& ops() const { return ops_; }

  BufferId AddBuffer(std::string name, BufferCategory category, int64_t slot_bytes, int64_t slots = 1,
                     bool persistent = false) {
    program_.buffers.push_back({.name = std::move(name),
                                .category = category,
                                .slot_bytes = slot_bytes,
                                .slots = slots,
                                .persistent = persistent});
    return static_cast<BufferId>(program_.buffers.size()) - 1;
  }
  // A new buffer of the size of `like`, and `like` placed at its start.
  Tensor AddTensor(std::string name, BufferCategory category, Tensor like, int64_t slots = 1, bool persistent = false) {
    like.where = {.symbol = AddBuffer(std::move(name), category, like.extent_bytes(), slots, persistent)};
    return like;
  }

  // `first_pass_differs`: of the instruction; then `action` is the op of the later passes.
  Instruction& Emit(const EmitContext& context, Action action, bool first_pass_differs = false) {
    Instruction instruction;
    if (const Op* op = std::get_if<Op>(&action)) {
      if (const int64_t bytes = ScratchBytes(*op, first_pass_differs); bytes > 0) {
        instruction.scratch = AddTensor("scratch", BufferCategory::kLibraryWorkspace,
                                        Tensor::Contiguous(DType::kInt16, {(bytes + 1) / 2}));
      }
    }
    instruction.action = std::move(action);
    instruction.first_pass_differs = first_pass_differs;
    instruction.stream = context.stream;
    instruction.phase = context.phase;
    instruction.unit = context.unit;
    instruction.micro_batch = context.micro_batch;
    program_.instructions.push_back(std::move(instruction));
    return program_.instructions.back();
  }

  // Ends the section that is open, if it has instructions, and opens one that repeats.
  void BeginSection(int64_t repeat) {
    CloseSection();
    repeat_ = repeat;
  }

  InstructionId next() const { return static_cast<InstructionId>(program_.instructions.size()); }
  StepProgram& program() { return program_; }
  StepProgram Finish() {
    CloseSection();
    return std::move(program_);
  }

 private:
  // For all passes.
  int64_t ScratchBytes(const Op& op, bool first_pass_differs) const {
    const int64_t bytes = ops_.ScratchBytes(op);
    if (!first_pass_differs) return bytes;
    Op first = op;
    MakeFirst(first);
    return std::max(bytes, ops_.ScratchBytes(first));
  }
  void CloseSection() {
    const InstructionId begin = program_.sections.empty() ? 0 : program_.sections.back().end;
    if (begin < next()) program_.sections.push_back({begin, next(), repeat_});
  }
  const Ops& ops_;
  StepProgram program_;
  int64_t repeat_ = 1;
};

}  // namespace shale
