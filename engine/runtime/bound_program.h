// BoundProgram: the instructions of a step program, with operands that point into a rank's memory.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/memory/plan.h"
#include "engine/program/program.h"
#include "engine/runtime/rank_runtime.h"

namespace shale {

// Borrows the program. Const methods may be called from any thread.
class BoundProgram {
 public:
  // Binds the operands, validates the ops and prepares them on the runtime.
  static absl::StatusOr<BoundProgram> Create(const StepProgram& program, const MemoryPlan& plan, RankRuntime& runtime);

  size_t size() const { return instructions_.size(); }
  // Returns the instruction as the loop's iterations issue it, with the addresses of the first one. That iteration may
  // issue another form of the op (Instruction::first_iteration_differs): OfIteration returns it.
  const Instruction& operator[](InstructionId id) const { return instructions_[id]; }
  // Returns the instruction exactly as this iteration issues it. If it differs from what operator[] returns, it is
  // written to `work`. The result is valid as long as both `work` and this object.
  const Instruction& OfIteration(InstructionId id, int64_t iteration, Instruction& work) const;
  // Returns whether an operand of the instruction has a different address in other iterations.
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
