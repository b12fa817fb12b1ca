// BoundProgram: a step program's instructions with operands where they lie in a rank's memory.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/memory/plan.h"
#include "engine/program/program.h"
#include "engine/runtime/rank_runtime.h"

namespace shale {

// Borrows the program. Const use from any thread.
class BoundProgram {
 public:
  // Validates the ops and prepares them on the runtime.
  static absl::StatusOr<BoundProgram> Create(const StepProgram& program, const MemoryPlan& plan, RankRuntime& runtime);

  size_t size() const { return instructions_.size(); }
  // At the addresses of the first iteration of its loop, and otherwise as of the later ones.
  const Instruction& operator[](InstructionId id) const { return instructions_[id]; }
  // As of a iteration. `work` holds what differs from other iterations, if anything does.
  const Instruction& OfIteration(InstructionId id, int64_t iteration, Instruction& work) const;
  // Whether an operand lies elsewhere in another iteration.
  bool moves(InstructionId id) const { return moves_[id]; }

 private:
  explicit BoundProgram(const StepProgram& program) : program_(&program) {}
  absl::Status Bind(const MemoryPlan& plan, RankRuntime& runtime);

  const StepProgram* program_;
  std::vector<Instruction> instructions_;
  std::vector<bool> moves_;  // By instruction.
};

// Enqueues the op of a bound instruction on its stream.
absl::Status LaunchOp(const Instruction& bound, RankRuntime& runtime);
// Enqueues a bound transfer.
absl::Status LaunchTransfer(const Transfer& bound, Stream& stream);

}  // namespace shale
