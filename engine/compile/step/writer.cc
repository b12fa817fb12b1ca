#include "engine/compile/step/writer.h"

#include <utility>

namespace shale {

void ProgramWriter::Emit(const EmitContext& context, Action action, bool first_iteration_differs) {
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

}  // namespace shale
