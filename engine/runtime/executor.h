// The executor: walks a step program on one rank's streams. It allocates nothing while it runs and decides nothing.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/memory/plan.h"
#include "engine/runtime/host_items.h"
#include "engine/step/program.h"
#include "kernels/device/device.h"
#include "kernels/op_backend.h"
#include "sharding/comm/communicator.h"

namespace shale {

// What one rank runs on: its arena, its streams, its communicators. Shared by the executors of a job's programs, of
// which one runs at a time. Borrows ops and communicators. With one rank the communicators may be null.
class RankRuntime {
 public:
  static absl::StatusOr<std::unique_ptr<RankRuntime>> Create(Device& device, Ops& ops, Communicator* gather,
                                                             Communicator* reduce, int rank, int64_t arena_bytes);

  Ops& ops() { return ops_; }
  int rank() const { return rank_; }
  Arena& arena() { return *arena_; }
  Device& device() { return device_; }
  Stream& stream(StreamId id) { return *streams_[static_cast<int>(id)]; }
  // Copies between the arena and any host memory, a little at a time, and waits. While no program runs; on the rank's
  // launching thread, or whichever has its place.
  absl::Status Read(const std::byte* from, void* to, int64_t bytes);
  absl::Status Write(std::byte* to, const void* from, int64_t bytes);
  // The communicator that works on `id`; null: none does.
  Communicator* communicator(StreamId id);
  // For Stream::Mark: counts all that is issued, in whatever program.
  uint32_t NextMark() { return ++marks_ == 0 ? ++marks_ : marks_; }
  uint32_t last_mark() const { return marks_; }
  // Highest byte of the arena that any launch or copy has touched, one past: measured apart from the plan.
  int64_t measured_peak_bytes() const { return meter_->peak_bytes(); }
  // Unblocks this rank and its peers after a failure. Any thread.
  void Abort(const absl::Status& reason);
  // Abort, and waits until nothing is left on the streams: what was enqueued may refer to what its owner drops now.
  void Stop(const absl::Status& reason);

 private:
  RankRuntime(Device& device, Ops& ops, Communicator* gather, Communicator* reduce, int rank)
      : device_(device), ops_(ops), gather_(gather), reduce_(reduce), rank_(rank) {}
  Device& device_;
  Ops& ops_;
  Communicator* gather_;
  Communicator* reduce_;
  int rank_;
  uint32_t marks_ = 0;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Arena> bounce_;  // Pinned; Read and Write go through it.
  std::unique_ptr<MemoryMeter> meter_;
  std::array<std::unique_ptr<Stream>, kStreams> streams_;  // Last: their threads end first.
};

// Sees every instruction of a run: for checks. Implies that instructions run one at a time.
class ExecutionObserver {
 public:
  virtual ~ExecutionObserver() = default;
  // `instruction` with operands bound to memory, before and after it ran.
  virtual void Before(InstructionId id, int64_t pass, const Instruction& instruction) = 0;
  virtual void After(InstructionId id, int64_t pass, const Instruction& instruction) = 0;
};

struct ExecutorOptions {
  bool synchronous = false;               // One instruction at a time: an error names its instruction.
  ExecutionObserver* observer = nullptr;  // Borrowed.
};

// When an instruction ran: after all that it waited for, on its stream.
struct InstructionTime {
  InstructionId id = 0;
  int64_t pass = 0;
  int64_t begin_ns = 0, end_ns = 0;  // Steady clock of the host.
};

class Executor {
 public:
  // Binds the program to the runtime's arena and prepares its ops. `program` and `plan` must outlive the executor.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(const StepProgram& program, const MemoryPlan& plan,
                                                          RankRuntime& runtime, const ExecutorOptions& options);

  // Runs the program once; on the rank's launching thread. After an error the peers are unblocked, and the runtime
  // cannot be used again.
  absl::Status Run(const StepInputs& inputs, StepOutputs& outputs);
  // From now on each Run notes when its instructions ran; the first use allocates.
  void SetTracing(bool on);
  // Of the last run, in issue order, if it was traced.
  absl::Span<const InstructionTime> times() const { return absl::MakeConstSpan(times_).subspan(0, issued_); }

 private:
  Executor(const StepProgram& program, const MemoryPlan& plan, RankRuntime& runtime, const ExecutorOptions& options)
      : program_(program), plan_(plan), runtime_(runtime), options_(options) {}

  absl::Status Bind();
  absl::Status Issue();
  absl::Status IssueInstruction(InstructionId id, int64_t pass);
  absl::Status Launch(const Instruction& bound, int64_t pass);
  absl::Status Synchronize();
  std::string Describe(InstructionId id, int64_t pass) const;
  std::string DescribeIssue(uint32_t number) const;  // Of a run, counted from 0.
  // How far each stream came in the run that began after `mark`, where devices tell; else nothing.
  std::string Progress(uint32_t mark) const;

  const StepProgram& program_;
  const MemoryPlan& plan_;
  RankRuntime& runtime_;
  const ExecutorOptions options_;
  std::vector<Instruction> bound_;             // Operands as of the first pass.
  std::vector<bool> varies_;                   // By instruction: differs from pass to pass.
  std::vector<std::unique_ptr<Event>> events_;  // By instruction; null: nobody waits for it.
  std::optional<HostItems> host_items_;
  bool tracing_ = false;
  std::vector<InstructionTime> times_;  // One for each that a run issues.
  size_t issued_ = 0;                   // Of these, in the last run.
};

}  // namespace shale
