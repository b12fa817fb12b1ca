#include "engine/run/runtime/executor.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/compile/program/issues.h"
#include "engine/run/runtime/rank_runtime.h"
#include "kernels/check.h"
#include "sharding/comm/all_to_all.h"

namespace shale {
namespace {

// How many instructions of the compute stream share a mark.
constexpr int kInstructionsPerMark = 8;

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(const StepProgram& program, const MemoryPlan& plan,
                                                           RankRuntime& runtime, const ExecutorOptions& options) {
  if (plan.peak_bytes > runtime.arena().size_bytes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan needs ", plan.peak_bytes, " bytes, the arena has ", runtime.arena().size_bytes()));
  }
  const StepItemLayout items(program);
  if (items.size_bytes() > std::ssize(runtime.host_items())) {
    return absl::InvalidArgumentError(absl::StrCat("what the program copies from and to the host needs ",
                                                   items.size_bytes(), " bytes of pinned memory, the rank has ",
                                                   runtime.host_items().size()));
  }
  if (plan.host_bytes > std::ssize(runtime.offloaded())) {
    return absl::InvalidArgumentError(absl::StrCat("what the program offloads needs ", plan.host_bytes,
                                                   " bytes of pinned memory, the rank has ",
                                                   runtime.offloaded().size()));
  }
  if (UsesStream(program, StreamId::kHost)) {
    if (runtime.ops().host() == nullptr) {
      return absl::FailedPreconditionError("the program updates on the host, and the backend has no ops for the host");
    }
    SHALE_RETURN_IF_ERROR(runtime.CreateHostStream());
  }
  std::unique_ptr<Executor> executor(new Executor(program, runtime, options));
  SHALE_ASSIGN_OR_RETURN(executor->bound_, BoundProgram::Create(program, plan, runtime));
  SHALE_RETURN_IF_ERROR(executor->CreateEvents());
  executor->ChooseMarks();
  size_t most_waits = 0;
  for (const Instruction& instruction : program.instructions)
    most_waits = std::max(most_waits, instruction.waits.size());
  executor->work_.waits.reserve(most_waits);
  executor->host_items_.emplace(items, runtime.host_items());
  if (options.ranges != nullptr) executor->ranges_.emplace(program, *options.ranges);
  if (options.graphs && !options.synchronous && options.observer == nullptr) {
    SHALE_ASSIGN_OR_RETURN(executor->graphs_,
                           IterationGraphs::Create(program, *executor->bound_, *executor->host_items_, runtime));
  }
  return executor;
}

absl::Status Executor::CreateEvents() {
  events_.resize(bound_->size());
  for (const Instruction& instruction : program_.instructions) {
    for (InstructionId wait : instruction.waits) {
      if (events_[wait] != nullptr) continue;
      SHALE_ASSIGN_OR_RETURN(events_[wait], runtime_.device().CreateEvent());
    }
  }
  return absl::OkStatus();
}

// On a GPU, a mark waits until all earlier writes of its stream are visible to the entire system. After each of the
// many short instructions of the compute stream that would cost about a hundredth of the step's time. The first one has
// a mark, so that an early failure can name this stream too.
void Executor::ChooseMarks() {
  int computed = 0;
  for (const Instruction& instruction : program_.instructions) {
    marked_.push_back(instruction.stream != StreamId::kCompute || computed++ % kInstructionsPerMark == 0);
  }
}

void Executor::SetTracing(bool on) {
  tracing_ = on;
  issued_ = 0;
  if (!on || !times_.empty()) return;
  times_.resize(CountIssues(program_));
}

absl::Status Executor::Run(const StepInputs& inputs, StepOutputs& outputs, const Pause& pause) {
  issued_ = 0;
  runtime_.ring().BeginRun(program_);
  const uint32_t mark = runtime_.last_mark();
  as_graphs_ = graphs_ != nullptr && !tracing_;
  if (ranges_) ranges_->BeginRun();
  absl::Status status = host_items_->Take(inputs);
  if (status.ok()) status = as_graphs_ ? LaunchGraphs(pause) : IssueAll(pause);
  // Unblocks peers that wait in collectives which this rank will not issue any more.
  if (!status.ok()) runtime_.Abort(status);
  absl::Status finished = Synchronize();
  if (ranges_) ranges_->EndRun();
  if (status.ok()) status = finished;
  if (!status.ok()) return absl::Status(status.code(), absl::StrCat(status.message(), Progress(mark)));
  host_items_->Give(outputs);
  return absl::OkStatus();
}

absl::Status Executor::Synchronize() {
  absl::Status first;
  // Compute and host come first: after a failure there, the communication streams wait for peers that wait for this
  // rank.
  static_assert(kStreams == 5, "a further stream needs a place in this order");
  for (StreamId id : {StreamId::kCompute, StreamId::kHost, StreamId::kCopy, StreamId::kReduce, StreamId::kGather}) {
    if (!runtime_.has_stream(id)) continue;
    absl::Status status = runtime_.stream(id).Synchronize();
    if (status.ok()) continue;
    if (first.ok()) {
      first = status;
      runtime_.Abort(status);
    }
  }
  return first;
}

std::string Executor::Describe(InstructionId id, int64_t iteration) const {
  const Instruction& instruction = (*bound_)[id];
  return absl::StrCat(id, " (", NameOf(instruction), ", unit ",
                      instruction.unit < 0 ? "-" : program_.units[instruction.unit], ", micro-batch ", iteration, ")");
}

std::string Executor::DescribeIssue(uint32_t number) const {
  for (const Issue& issue : IssuesOf(program_)) {
    if (number-- == 0) return Describe(issue.id, issue.iteration);
  }
  return "beyond the program";
}

std::string Executor::DescribeLaunch(uint32_t number) const {
  for (const Loop& loop : program_.loops) {
    if (number < loop.repeat) {
      return absl::StrCat("the graph of instructions ", loop.begin, " to ", Describe(loop.end - 1, number));
    }
    number -= loop.repeat;
  }
  return "beyond the program";
}

std::string Executor::Progress(uint32_t mark) const {
  std::string text;
  const uint32_t marks = MarksBetween(mark, runtime_.last_mark());
  for (int s = 0; s < kStreams; ++s) {
    const StreamId id = static_cast<StreamId>(s);
    if (!runtime_.has_stream(id)) continue;
    const std::optional<uint32_t> reached = runtime_.stream(id).reached_mark();
    if (!reached || *reached == 0) continue;
    const uint32_t number = MarksBetween(mark, *reached) - 1;
    if (number >= marks) continue;  // The stream has reached no mark of this run yet.
    if (as_graphs_) return absl::StrCat("; the last to finish was ", DescribeLaunch(number));
    absl::StrAppend(&text, text.empty() ? "; the last known to have finished were on stream " : ", on ", ToString(id),
                    " ", DescribeIssue(number));
  }
  return text;
}

absl::Status Executor::IssueAll(const Pause& pause) {
  bool paused = pause.before < 0;
  for (const Issue& issue : IssuesOf(program_)) {
    if (!paused && issue.id == pause.before) {
      paused = true;
      SHALE_RETURN_IF_ERROR(Synchronize());
      SHALE_RETURN_IF_ERROR(pause.work());
    }
    if (ranges_) ranges_->BeginIssue(issue.id, issue.iteration);
    const absl::Status status = IssueInstruction(issue.id, issue.iteration);
    if (ranges_) ranges_->EndIssue(issue.id);
    SHALE_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

absl::Status Executor::LaunchGraphs(const Pause& pause) {
  bool paused = pause.before < 0;
  for (size_t loop = 0; loop < program_.loops.size(); ++loop) {
    const auto& [begin, end, repeat] = program_.loops[loop];
    const bool pauses = !paused && begin <= pause.before && pause.before < end;
    for (int64_t iteration = 0; iteration < repeat; ++iteration) {
      if (pauses && !paused && IsIssued(program_.instructions[pause.before], program_.loops[loop], iteration)) {
        paused = true;
        SHALE_RETURN_IF_ERROR(Synchronize());
        SHALE_RETURN_IF_ERROR(pause.work());
      }
      if (ranges_) ranges_->BeginLaunch(loop, iteration);
      const absl::Status status = graphs_->Launch(loop, iteration);
      if (ranges_) ranges_->EndLaunch();
      SHALE_RETURN_IF_ERROR(status);
      SHALE_RETURN_IF_ERROR(runtime_.stream(StreamId::kCompute).Mark(runtime_.NextMark()));
    }
  }
  return absl::OkStatus();
}

absl::Status Executor::IssueInstruction(InstructionId id, int64_t iteration) {
  const Instruction& instruction = bound_->OfIteration(id, iteration, work_);
  if (!options_.synchronous && options_.observer == nullptr) return Enqueue(instruction, id, iteration);
  if (options_.observer != nullptr) options_.observer->Before(id, iteration, instruction);
  absl::Status status = Enqueue(instruction, id, iteration);
  if (status.ok()) status = runtime_.stream(instruction.stream).Synchronize();
  if (!status.ok()) {
    return absl::Status(status.code(), absl::StrCat("instruction ", Describe(id, iteration), ": ", status.message()));
  }
  if (options_.observer != nullptr) options_.observer->After(id, iteration, instruction);
  return absl::OkStatus();
}

absl::Status Executor::Enqueue(const Instruction& instruction, InstructionId id, int64_t iteration) {
  Stream& stream = runtime_.stream(instruction.stream);
  for (InstructionId wait : instruction.waits) SHALE_RETURN_IF_ERROR(stream.Wait(*events_[wait]));
  InstructionTime* time = nullptr;
  if (tracing_) {
    time = &times_[issued_++];
    *time = {.id = id, .iteration = iteration};
    SHALE_RETURN_IF_ERROR(stream.RecordTime(&time->begin_ns));
  }
  const bool noted = runtime_.makes_notes() && marked_[id];
  if (noted && std::holds_alternative<Collective>(instruction.action)) {
    SHALE_RETURN_IF_ERROR(runtime_.ring().EnqueueBegin(stream, instruction.stream, id, iteration));
  }
  SHALE_RETURN_IF_ERROR(Launch(instruction, id, iteration));
  if (noted) SHALE_RETURN_IF_ERROR(runtime_.ring().EnqueueEnd(stream, instruction.stream, id, iteration));
  const uint32_t mark = runtime_.NextMark();
  if (marked_[id]) SHALE_RETURN_IF_ERROR(stream.Mark(mark));
  if (time != nullptr) SHALE_RETURN_IF_ERROR(stream.RecordTime(&time->end_ns));
  if (events_[id] != nullptr) SHALE_RETURN_IF_ERROR(stream.Record(*events_[id]));
  return absl::OkStatus();
}

absl::Status Executor::Launch(const Instruction& bound, InstructionId id, int64_t iteration) {
  Stream& stream = runtime_.stream(bound.stream);
  if (std::holds_alternative<Op>(bound.action)) return LaunchOp(bound, runtime_);
  if (const auto* collective = std::get_if<Collective>(&bound.action)) {
    Communicator* communicator = runtime_.communicator(collective->axis, bound.stream);
    SHALE_CHECK(communicator != nullptr) << "a collective over " << ToString(collective->axis) << " on stream "
                                         << ToString(bound.stream) << " of a lone rank";
    communicator->SetIssue({runtime_.ring().run(), static_cast<int32_t>(id), static_cast<int32_t>(iteration)});
    switch (collective->kind) {
      case CollectiveKind::kAllGather: return communicator->AllGather(collective->local, collective->full, stream);
      case CollectiveKind::kReduceScatterSum:
        return communicator->ReduceScatterSum(collective->full, collective->local, stream);
      case CollectiveKind::kAllReduceSum: return communicator->AllReduceSum(collective->full, stream);
      case CollectiveKind::kAllToAll: return AllToAllRows(*communicator, collective->full, collective->local, stream);
    }
  }
  if (const auto* transfer = std::get_if<Transfer>(&bound.action)) return LaunchTransfer(*transfer, stream);
  const StepItemCopy& copy = std::get<StepItemCopy>(bound.action);
  const StepItems::Ends ends = host_items_->EndsOf(copy, iteration);
  return stream.Copy(ends.to, ends.from, copy.device.extent_bytes());
}

}  // namespace shale
