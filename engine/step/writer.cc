#include "engine/step/writer.h"

#include <algorithm>

#include "engine/program/issues.h"

namespace shale {

Instruction& ProgramWriter::Emit(const EmitContext& context, Action action, bool first_iteration_differs) {
  Instruction instruction;
  instruction.action = std::move(action);
  instruction.first_iteration_differs = first_iteration_differs;
  if (const int64_t bytes = ScratchBytes(instruction); bytes > 0) {
    instruction.scratch =
        AddTensor("scratch", BufferCategory::kLibraryWorkspace, Tensor::Contiguous(DType::kInt16, {(bytes + 1) / 2}));
  }
  instruction.stream = context.stream;
  instruction.phase = context.phase;
  instruction.unit = context.unit;
  instruction.micro_batch = context.micro_batch;
  program_.instructions.push_back(std::move(instruction));
  return program_.instructions.back();
}

int64_t ProgramWriter::ScratchBytes(const Instruction& instruction) const {
  int64_t bytes = 0;
  VisitForms(instruction, [&](const Op& form) { bytes = std::max(bytes, ops_.ScratchBytes(form)); });
  return bytes;
}

}  // namespace shale
