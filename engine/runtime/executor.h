// The executor: walks a step program on one rank's streams. It allocates nothing while it runs, but for what it notes
// the first time (tracing, graphs), and decides nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/memory/plan.h"
#include "engine/program/program.h"
#include "engine/runtime/bound_program.h"
#include "engine/runtime/host_items.h"
#include "engine/runtime/iteration_graphs.h"
#include "engine/runtime/rank_runtime.h"
#include "kernels/device/device.h"

namespace shale {

// Sees every instruction of a run: for checks. Implies that instructions run one at a time.
class ExecutionObserver {
 public:
  virtual ~ExecutionObserver() = default;
  // `instruction` with operands bound to memory, before and after it ran.
  virtual void Before(InstructionId id, int64_t iteration, const Instruction& instruction) = 0;
  virtual void After(InstructionId id, int64_t iteration, const Instruction& instruction) = 0;
};

struct ExecutorOptions {
  bool synchronous = false;               // One instruction at a time: an error names its instruction.
  ExecutionObserver* observer = nullptr;  // Borrowed.
  // From the second run on, iterations are captured and launched as graphs (see IterationGraphs): the same
  // instructions, the same bits. Not runs that are synchronous, observed or traced.
  bool graphs = false;
};

// When an instruction ran: after all that it waited for, on its stream.
struct InstructionTime {
  InstructionId id = 0;
  int64_t iteration = 0;
  int64_t begin_ns = 0, end_ns = 0;  // Steady clock of the host.
};

class Executor {
 public:
  // Binds the program to the runtime's arena and prepares its ops. `program` and `plan` must outlive the executor.
  // FailedPrecondition: the program cannot run as graphs.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(const StepProgram& program, const MemoryPlan& plan,
                                                          RankRuntime& runtime, const ExecutorOptions& options);

  // Runs the program once; on the rank's launching thread. After an error the peers are unblocked, and the runtime
  // cannot be used again.
  absl::Status Run(const StepInputs& inputs, StepOutputs& outputs);
  // From now on each Run notes when its instructions ran; the first use allocates.
  void SetTracing(bool on);
  // Of the last run, in issue order, if it was traced.
  absl::Span<const InstructionTime> times() const { return absl::MakeConstSpan(times_).subspan(0, issued_); }
  // Captured so far.
  size_t graphs() const { return graphs_ == nullptr ? 0 : graphs_->size(); }

 private:
  Executor(const StepProgram& program, RankRuntime& runtime, const ExecutorOptions& options)
      : program_(program), runtime_(runtime), options_(options) {}

  absl::Status CreateEvents();
  absl::Status IssueAll();
  absl::Status LaunchGraphs();
  absl::Status IssueInstruction(InstructionId id, int64_t iteration);
  // Enqueues it, and what goes with it on its stream.
  absl::Status Enqueue(const Instruction& instruction, InstructionId id, int64_t iteration);
  absl::Status Launch(const Instruction& bound, int64_t iteration);
  absl::Status Synchronize();
  std::string Describe(InstructionId id, int64_t iteration) const;
  std::string DescribeIssue(uint32_t number) const;   // Of a run, counted from 0.
  std::string DescribeLaunch(uint32_t number) const;  // Of a run as graphs, likewise.
  // How far each stream came in the run that began after `mark`, where devices tell; else nothing.
  std::string Progress(uint32_t mark) const;

  const StepProgram& program_;
  RankRuntime& runtime_;
  const ExecutorOptions options_;
  std::optional<BoundProgram> bound_;
  std::vector<std::unique_ptr<Event>> events_;  // By instruction; null: nobody waits for it.
  std::optional<HostItems> host_items_;
  std::unique_ptr<IterationGraphs> graphs_;  // Null: not asked for.
  bool warm_ = false;                        // The program has run: what its ops load and choose at first is there.
  bool as_graphs_ = false;                   // The last run.
  Instruction work_;                         // See BoundProgram::OfIteration.
  bool tracing_ = false;
  std::vector<InstructionTime> times_;  // One for each that a run issues.
  size_t issued_ = 0;                   // Of these, in the last run.
};

}  // namespace shale
