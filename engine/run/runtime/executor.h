// The executor runs a step program on one rank's streams. It makes no decisions. While it runs it allocates nothing,
// except the first time that it traces or returns logits.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/compile/memory/plan.h"
#include "engine/compile/program/program.h"
#include "engine/run/runtime/bound_program.h"
#include "engine/run/runtime/profiler_ranges.h"
#include "engine/run/runtime/rank_runtime.h"
#include "engine/run/runtime/step_items.h"
#include "kernels/device/device.h"

namespace shale {

// Observes every instruction of a run, for checks. With an observer, instructions run one at a time.
class ExecutionObserver {
 public:
  virtual ~ExecutionObserver() = default;
  // Called before and after an instruction runs. Its operands are bound to memory.
  virtual void Before(InstructionId id, int64_t iteration, const Instruction& instruction) = 0;
  virtual void After(InstructionId id, int64_t iteration, const Instruction& instruction) = 0;
};

// A place in a run at which the rank waits for all that it has issued, and then calls `work`. Peers wait for it in
// their next collective, if they have one.
struct Pause {
  InstructionId before = -1;  // The first issue of this instruction comes after the pause. -1: there is no pause.
  std::function<absl::Status()> work;
};

struct ExecutorOptions {
  bool synchronous = false;               // Runs one instruction at a time, so that errors name their instruction.
  ExecutionObserver* observer = nullptr;  // Borrowed.
  // If true, Create captures the iterations as graphs, and Run launches these (see IterationGraphs). They run the same
  // instructions and compute the same bits. Synchronous, observed and traced runs do not use graphs.
  bool graphs = false;
  ProfilerRanges* ranges = nullptr;  // Borrowed. Gets the names of what the executor enqueues, unless it is null.
};

// The time at which an instruction ran on its stream, after all that it waited for had finished.
//
// [Note: times of a step] A step that is traced has a time for each issue of an instruction on each rank. They are read
// by:
//   StepTrace (engine/run/runtime/trace.h)             train --trace: the file of the trace, and tables of where the
//                                                      time goes. ReadTrace (tools/read_trace.h) reads the file for
//                                                      the page of a plan.
//   WorkTimes (engine/run/runtime/work_times.h)        calibrate: how long each work takes, for a profile.
//   RankTimes (engine/run/train/step_contract.h)       a run whose steps are slower than predicted: what is slower.
struct InstructionTime {
  InstructionId id = 0;
  int64_t iteration = 0;
  int64_t begin_ns = 0, end_ns = 0;  // On the host's steady clock.

  double seconds() const { return static_cast<double>(end_ns - begin_ns) * 1e-9; }
};

class Executor {
 public:
  // Binds the program to the runtime's arena and prepares its ops. `program`, `plan` and `runtime` must outlive the
  // executor. If graphs are requested, libraries must have computed the program's ops before (LocalRanks does this),
  // because their first use may do what a capture forbids. Returns FailedPrecondition if graphs are requested and the
  // program cannot run as graphs, and InvalidArgument if the runtime has less memory than the plan needs.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(const StepProgram& program, const MemoryPlan& plan,
                                                          RankRuntime& runtime, const ExecutorOptions& options);

  // Runs the program once and waits until it has finished. Call it on the rank's launching thread. After an error the
  // peers are unblocked, and the runtime cannot be used again. As graphs, it pauses before the iteration that issues
  // the instruction of `pause`.
  absl::Status Run(const StepInputs& inputs, StepOutputs& outputs, const Pause& pause = {});
  // If `on`, each later Run records when its instructions ran. Allocates memory on first use.
  void SetTracing(bool on);
  // Returns the times of the last run, in issue order, if it was traced.
  absl::Span<const InstructionTime> times() const { return absl::MakeConstSpan(times_).subspan(0, issued_); }
  // Returns how many graphs it launches iterations from.
  size_t graphs() const { return graphs_ == nullptr ? 0 : graphs_->size(); }

 private:
  Executor(const StepProgram& program, RankRuntime& runtime, const ExecutorOptions& options)
      : program_(program), runtime_(runtime), options_(options) {}

  absl::Status CreateEvents();
  void ChooseMarks();
  absl::Status IssueAll(const Pause& pause);
  absl::Status LaunchGraphs(const Pause& pause);
  absl::Status IssueInstruction(InstructionId id, int64_t iteration);
  // Enqueues the instruction on its stream, with its waits, marks, times and event.
  absl::Status Enqueue(const Instruction& instruction, InstructionId id, int64_t iteration);
  absl::Status Launch(const Instruction& bound, InstructionId id, int64_t iteration);
  absl::Status Synchronize();
  std::string Describe(InstructionId id, int64_t iteration) const;
  std::string DescribeIssue(uint32_t number) const;   // Describes issue `number` of a run, counted from 0.
  std::string DescribeLaunch(uint32_t number) const;  // Does the same for the graph launches of a run.
  // Returns a text about how far each stream came in the run that began after `mark`. The text is empty on devices that
  // keep no marks.
  std::string Progress(uint32_t mark) const;

  const StepProgram& program_;
  RankRuntime& runtime_;
  const ExecutorOptions options_;
  std::optional<BoundProgram> bound_;
  std::vector<std::unique_ptr<Event>> events_;  // By instruction. Null if nothing waits for it.
  std::vector<bool> marked_;                    // By instruction: whether its stream gets a mark after it.
  std::optional<StepItems> host_items_;
  std::optional<ProgramRanges> ranges_;      // Absent if no profiler wants them.
  std::unique_ptr<IterationGraphs> graphs_;  // Null if graphs are not used.
  bool as_graphs_ = false;                   // The last run was launched as graphs.
  Instruction work_;                         // Reused by BoundProgram::OfIteration.
  bool tracing_ = false;
  std::vector<InstructionTime> times_;  // One for each issue of a run.
  size_t issued_ = 0;                   // How many of `times_` the last run has set.
};

}  // namespace shale
