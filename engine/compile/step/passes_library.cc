// AddScratch: the pass that gives ops the memory that the libraries of a device need.
#include <algorithm>

#include "engine/compile/program/issues.h"
#include "engine/compile/step/edit.h"
#include "engine/compile/step/passes.h"

namespace shale {

void AddScratch(StepProgram& program, const Ops& ops) {
  ProgramEdit edit(program);
  for (Instruction& instruction : program.instructions) {
    const bool on_host = instruction.stream == StreamId::kHost;
    int64_t bytes = 0;
    VisitForms(instruction,
               [&](const Op& form) { bytes = std::max(bytes, (on_host ? *ops.host() : ops).ScratchBytes(form)); });
    if (bytes == 0) continue;
    instruction.scratch = edit.AddTensor("scratch", BufferCategory::kLibraryWorkspace,
                                         Tensor::Contiguous(DType::kInt16, {(bytes + 1) / 2}),
                                         on_host ? MemoryKind::kHost : MemoryKind::kDevice);
  }
  edit.Apply();
}

}  // namespace shale
