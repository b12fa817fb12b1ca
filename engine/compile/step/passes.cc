#include "engine/compile/step/passes.h"

#include <algorithm>
#include <variant>

#include "kernels/ops/update.h"

namespace shale {

bool HasUpdates(const StepProgram& program) {
  return std::any_of(program.instructions.begin(), program.instructions.end(), [](const Instruction& instruction) {
    const Op* op = std::get_if<Op>(&instruction.action);
    return op != nullptr && op->Is<Update>();
  });
}

absl::Status RunPasses(const StepOptions& options, const JobState& state, const Ops& ops, const WorkLimits& limits,
                       StepProgram& program) {
  for (const Pass& pass : ListPasses(options, state, ops, limits, program)) {
    SHALE_RETURN_IF_ERROR(limits.Check());
    if (pass.applies) SHALE_RETURN_IF_ERROR(pass.run());
  }
  return limits.Check();
}

}  // namespace shale
