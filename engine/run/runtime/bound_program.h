// BoundProgram: the instructions of a step program, with operands that point into a rank's memory. IterationGraphs
// captures its iterations as graphs of the device and launches them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/compile/memory/plan.h"
#include "engine/compile/program/graphs.h"
#include "engine/compile/program/program.h"
#include "engine/run/runtime/rank_runtime.h"
#include "engine/run/runtime/step_items.h"
#include "kernels/device/device.h"

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

// Borrows everything it is given. Captures all graphs when it is created, because they take memory of the device;
// engine/compile/program/graphs.h says which iterations share a graph and what a graph does. Every iteration reads its
// tokens from its own place in host memory, so the copies in a shared graph are set to that place before each launch.
// The number of graphs does not grow with the number of micro-batches, unless buffers have a slot for each.
//
// Launches on the compute stream. Later work on that stream starts after the whole graph has finished.
class IterationGraphs {
 public:
  // Returns FailedPrecondition, with the reason, if the program cannot run as graphs.
  static absl::StatusOr<std::unique_ptr<IterationGraphs>> Create(const StepProgram& program, const BoundProgram& bound,
                                                                 const StepItems& host_items, RankRuntime& runtime);

  // Enqueues one iteration of the loop with index `loop`.
  absl::Status Launch(size_t loop, int64_t iteration);
  // Returns how many graphs there are.
  size_t size() const { return graphs_.size(); }

 private:
  struct Captured {
    std::unique_ptr<Graph> graph;
    std::vector<std::pair<InstructionId, CapturedCopy>> copies;  // Of items of the step.
    int64_t iteration = 0;                                       // The iteration whose copies are set in the graph now.
  };

  IterationGraphs(std::vector<LoopGraphs> loops, const BoundProgram& bound, const StepItems& host_items,
                  RankRuntime& runtime);
  // Captures the graph of an iteration, unless an earlier one has the same.
  absl::Status CaptureOnce(size_t loop, int64_t iteration);
  absl::Status Capture(const std::vector<GraphStep>& steps, int64_t iteration, Captured& captured);
  absl::Status Enqueue(InstructionId id, int64_t iteration, Captured& captured);

  const std::vector<LoopGraphs> loops_;
  const BoundProgram& bound_;
  const StepItems& host_items_;
  RankRuntime& runtime_;
  std::map<std::pair<size_t, int64_t>, Captured> graphs_;  // By loop and LoopGraphs::VariantOf.
};

}  // namespace shale
