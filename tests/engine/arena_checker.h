// Watches a rank's arena while a program runs on it, on any kind of device. Finds every byte that changed outside an
// instruction's writes, and poisons buffers when their lifetime ends.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/compile/memory/plan.h"
#include "engine/run/runtime/executor.h"

namespace shale::testing {

class ArenaChecker : public ExecutionObserver {
 public:
  // Calls `report` for each violation, on the rank's thread. Borrows all other arguments.
  ArenaChecker(const StepProgram& program, const MemoryPlan& plan, RankRuntime& runtime,
               std::function<void(std::string)> report);

  void Before(InstructionId id, int64_t iteration, const Instruction& instruction) override;
  void After(InstructionId id, int64_t iteration, const Instruction& instruction) override;

 private:
  void Read(std::vector<std::byte>& bytes);
  void PoisonDead(InstructionId id, int64_t iteration);

  const StepProgram& program_;
  const MemoryPlan& plan_;
  RankRuntime& runtime_;
  std::function<void(std::string)> report_;
  std::vector<Lifetime> lifetimes_;
  std::vector<std::vector<BufferId>> ends_;  // By instruction: the buffers whose lifetime ends with it.
  std::vector<const Loop*> loop_of_;
  std::vector<std::byte> before_, after_;
};

}  // namespace shale::testing
