#include "engine/runtime/executor.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace shale {
namespace {

constexpr int64_t kBounceBytes = int64_t{256} << 10;

// Calls visitor(tensor) for every operand of an instruction that can be changed.
template <class Visitor>
void VisitTensors(Instruction& instruction, Visitor&& visitor) {
  if (Op* op = std::get_if<Op>(&instruction.action)) {
    VisitOperands(*op, [&](absl::string_view, Tensor& t, Access) { visitor(t); });
  } else if (auto* collective = std::get_if<Collective>(&instruction.action)) {
    visitor(collective->local);
    visitor(collective->full);
  } else {
    visitor(std::get<HostCopy>(instruction.action).device);
  }
  visitor(instruction.scratch);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankRuntime>> RankRuntime::Create(Device& device, Ops& ops, Communicator* gather,
                                                                 Communicator* reduce, int rank, int64_t arena_bytes) {
  std::unique_ptr<RankRuntime> runtime(new RankRuntime(device, ops, gather, reduce, rank));
  SHALE_ASSIGN_OR_RETURN(runtime->arena_, device.Allocate(arena_bytes));
  SHALE_ASSIGN_OR_RETURN(runtime->bounce_, device.AllocatePinned(kBounceBytes));
  runtime->meter_ = std::make_unique<MemoryMeter>(runtime->arena_->base(), arena_bytes);
  for (int s = 0; s < kStreams; ++s) {
    SHALE_ASSIGN_OR_RETURN(runtime->streams_[s], device.CreateStream(ToString(static_cast<StreamId>(s))));
    runtime->streams_[s]->set_meter(runtime->meter_.get());
  }
  return runtime;
}

absl::Status RankRuntime::Read(const std::byte* from, void* to, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += kBounceBytes) {
    const int64_t count = std::min(kBounceBytes, bytes - at);
    SHALE_RETURN_IF_ERROR(stream(StreamId::kCopy).Copy(bounce_->base(), from + at, count));
    SHALE_RETURN_IF_ERROR(stream(StreamId::kCopy).Synchronize());
    std::memcpy(static_cast<std::byte*>(to) + at, bounce_->base(), count);
  }
  return absl::OkStatus();
}

absl::Status RankRuntime::Write(std::byte* to, const void* from, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += kBounceBytes) {
    const int64_t count = std::min(kBounceBytes, bytes - at);
    std::memcpy(bounce_->base(), static_cast<const std::byte*>(from) + at, count);
    SHALE_RETURN_IF_ERROR(stream(StreamId::kCopy).Copy(to + at, bounce_->base(), count));
    SHALE_RETURN_IF_ERROR(stream(StreamId::kCopy).Synchronize());
  }
  return absl::OkStatus();
}

Communicator* RankRuntime::communicator(StreamId id) {
  if (id == StreamId::kGather) return gather_;
  return id == StreamId::kReduce ? reduce_ : nullptr;
}

void RankRuntime::Abort(const absl::Status& reason) {
  if (gather_ != nullptr) gather_->Abort(reason);
  if (reduce_ != nullptr) reduce_->Abort(reason);
}

void RankRuntime::Stop(const absl::Status& reason) {
  Abort(reason);
  for (const auto& stream : streams_) stream->Synchronize().IgnoreError();  // The reason is the error.
}

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(const StepProgram& program, const MemoryPlan& plan,
                                                           RankRuntime& runtime, const ExecutorOptions& options) {
  if (plan.peak_bytes > runtime.arena().size_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat("the plan needs ", plan.peak_bytes, " bytes, the arena has ",
                                                   runtime.arena().size_bytes()));
  }
  std::unique_ptr<Executor> executor(new Executor(program, plan, runtime, options));
  SHALE_RETURN_IF_ERROR(executor->Bind());
  SHALE_ASSIGN_OR_RETURN(executor->host_items_, HostItems::Create(program, runtime.device()));
  return executor;
}

absl::Status Executor::Bind() {
  bound_ = program_.instructions;
  varies_.assign(bound_.size(), false);
  events_.resize(bound_.size());
  for (size_t id = 0; id < bound_.size(); ++id) {
    Instruction& instruction = bound_[id];
    varies_[id] = instruction.accumulate_after_first;
    VisitTensors(instruction, [&](Tensor& t) {
      if (!t.present()) return;
      const Location& where = t.where;
      t.data = runtime_.arena().base() + plan_.addresses[where.symbol] + where.offset_bytes +
               runtime_.rank() * where.rank_stride_bytes;
      if (program_.buffers[where.symbol].slots > 1) varies_[id] = true;
    });
    if (Op* op = std::get_if<Op>(&instruction.action)) {
      if (auto* adamw = std::get_if<AdamW>(op)) {
        adamw->slice_begin = adamw->sharded ? runtime_.rank() * adamw->gradient_P.elements() : 0;
      }
      SHALE_RETURN_IF_ERROR(Validate(*op));
      SHALE_RETURN_IF_ERROR(runtime_.ops().Prepare(*op));
      if (instruction.accumulate_after_first) {
        Op first = *op;
        SetAccumulate(first, false);
        SHALE_RETURN_IF_ERROR(runtime_.ops().Prepare(first));
      }
    }
    for (InstructionId wait : instruction.waits) {
      if (events_[wait] != nullptr) continue;
      SHALE_ASSIGN_OR_RETURN(events_[wait], runtime_.device().CreateEvent());
    }
  }
  return absl::OkStatus();
}

void Executor::SetTracing(bool on) {
  tracing_ = on;
  issued_ = 0;
  if (!on || !times_.empty()) return;
  int64_t issues = 0;
  for (const Section& section : program_.sections) issues += (section.end - section.begin) * section.repeat;
  times_.resize(issues);
}

absl::Status Executor::Run(const StepInputs& inputs, StepOutputs& outputs) {
  issued_ = 0;
  const uint32_t mark = runtime_.last_mark();
  absl::Status status = host_items_->Take(inputs);
  if (status.ok()) status = Issue();
  // Peers wait in collectives for what this rank will not issue any more.
  if (!status.ok()) runtime_.Abort(status);
  absl::Status finished = Synchronize();
  if (status.ok()) status = finished;
  if (!status.ok()) return absl::Status(status.code(), absl::StrCat(status.message(), Progress(mark)));
  host_items_->Give(outputs);
  return absl::OkStatus();
}

absl::Status Executor::Synchronize() {
  absl::Status first;
  // Compute first: when it failed, communication waits for peers that wait for us.
  for (StreamId id : {StreamId::kCompute, StreamId::kCopy, StreamId::kReduce, StreamId::kGather}) {
    absl::Status status = runtime_.stream(id).Synchronize();
    if (status.ok()) continue;
    if (first.ok()) {
      first = status;
      runtime_.Abort(status);
    }
  }
  return first;
}

std::string Executor::Describe(InstructionId id, int64_t pass) const {
  const Instruction& instruction = bound_[id];
  return absl::StrCat(id, " (", NameOf(instruction), ", unit ",
                      instruction.unit < 0 ? "-" : program_.units[instruction.unit], ", micro-batch ", pass, ")");
}

std::string Executor::DescribeIssue(uint32_t number) const {
  for (const Section& section : program_.sections) {
    for (int64_t pass = 0; pass < section.repeat; ++pass) {
      for (InstructionId id = section.begin; id < section.end; ++id) {
        if (bound_[id].last_pass_only && pass + 1 < section.repeat) continue;
        if (number-- == 0) return Describe(id, pass);
      }
    }
  }
  return "beyond the program";
}

std::string Executor::Progress(uint32_t mark) const {
  std::string text;
  for (StreamId id : {StreamId::kCompute, StreamId::kGather, StreamId::kReduce, StreamId::kCopy}) {
    const std::optional<uint32_t> reached = runtime_.stream(id).reached_mark();
    // A mark of an earlier run is further back than this one has come.
    if (!reached || *reached - mark - 1 >= runtime_.last_mark() - mark) continue;
    absl::StrAppend(&text, text.empty() ? "; the last to finish were on stream " : ", on ", ToString(id), " ",
                    DescribeIssue(*reached - mark - 1));
  }
  return text;
}

absl::Status Executor::Issue() {
  for (const Section& section : program_.sections) {
    for (int64_t pass = 0; pass < section.repeat; ++pass) {
      for (InstructionId id = section.begin; id < section.end; ++id) {
        if (bound_[id].last_pass_only && pass + 1 < section.repeat) continue;
        SHALE_RETURN_IF_ERROR(IssueInstruction(id, pass));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Executor::IssueInstruction(InstructionId id, int64_t pass) {
  const Instruction* instruction = &bound_[id];
  Instruction of_pass;
  if (varies_[id]) {
    of_pass = bound_[id];
    if (of_pass.accumulate_after_first) SetAccumulate(std::get<Op>(of_pass.action), pass > 0);
    VisitTensors(of_pass, [&](Tensor& t) {
      if (!t.present()) return;
      const Buffer& buffer = program_.buffers[t.where.symbol];
      if (buffer.slots > 1) t.data = static_cast<std::byte*>(t.data) + pass * buffer.slot_bytes;
    });
    instruction = &of_pass;
  }
  Stream& stream = runtime_.stream(instruction->stream);
  for (InstructionId wait : instruction->waits) SHALE_RETURN_IF_ERROR(stream.Wait(*events_[wait]));
  if (options_.observer != nullptr) options_.observer->Before(id, pass, *instruction);
  InstructionTime* time = nullptr;
  if (tracing_) {
    time = &times_[issued_++];
    *time = {.id = id, .pass = pass};
    SHALE_RETURN_IF_ERROR(stream.RecordTime(&time->begin_ns));
  }
  SHALE_RETURN_IF_ERROR(Launch(*instruction, pass));
  SHALE_RETURN_IF_ERROR(stream.Mark(runtime_.NextMark()));
  if (time != nullptr) SHALE_RETURN_IF_ERROR(stream.RecordTime(&time->end_ns));
  if (events_[id] != nullptr) SHALE_RETURN_IF_ERROR(stream.Record(*events_[id]));
  if (options_.synchronous || options_.observer != nullptr) {
    if (absl::Status status = stream.Synchronize(); !status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat("instruction ", Describe(id, pass), ": ", status.message()));
    }
    if (options_.observer != nullptr) options_.observer->After(id, pass, *instruction);
  }
  return absl::OkStatus();
}

absl::Status Executor::Launch(const Instruction& bound, int64_t pass) {
  Stream& stream = runtime_.stream(bound.stream);
  if (const Op* op = std::get_if<Op>(&bound.action)) {
    const Scratch scratch{static_cast<std::byte*>(bound.scratch.data), bound.scratch.extent_bytes()};
    return runtime_.ops().Launch(*op, scratch, stream);
  }
  if (const auto* collective = std::get_if<Collective>(&bound.action)) {
    Communicator* communicator = runtime_.communicator(bound.stream);
    SHALE_CHECK(communicator != nullptr) << "a collective on stream " << ToString(bound.stream) << " of a lone rank";
    switch (collective->kind) {
      case CollectiveKind::kAllGather: return communicator->AllGather(collective->local, collective->full, stream);
      case CollectiveKind::kReduceScatterSum:
        return communicator->ReduceScatterSum(collective->full, collective->local, stream);
      case CollectiveKind::kAllReduceSum: return communicator->AllReduceSum(collective->full, stream);
    }
  }
  const HostCopy& copy = std::get<HostCopy>(bound.action);
  std::byte* host = host_items_->At(copy.item, pass);
  const Tensor& device = copy.device;
  return ToHost(copy.item) ? stream.Copy(host, device.data, device.extent_bytes())
                           : stream.Copy(device.data, host, device.extent_bytes());
}

}  // namespace shale
