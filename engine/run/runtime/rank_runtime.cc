#include "engine/run/runtime/rank_runtime.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "absl/status/statusor.h"
#include "kernels/check.h"
#include "kernels/device/cpu/cpu_stream.h"

namespace shale {

void InstructionRing::BeginRun(const StepProgram& program) {
  const std::lock_guard<std::mutex> lock(mutex_);
  program_ = &program;
  ++run_;
}

absl::Status InstructionRing::EnqueueBegin(Stream& stream, StreamId id, InstructionId instruction, int64_t iteration) {
  return Enqueue(stream, {.id = static_cast<uint32_t>(instruction),
                          .iteration = static_cast<uint32_t>(iteration),
                          .stream = static_cast<uint32_t>(id),
                          .ends = 0});
}

absl::Status InstructionRing::EnqueueEnd(Stream& stream, StreamId id, InstructionId instruction, int64_t iteration) {
  return Enqueue(stream, {.id = static_cast<uint32_t>(instruction),
                          .iteration = static_cast<uint32_t>(iteration),
                          .stream = static_cast<uint32_t>(id),
                          .ends = 1});
}

absl::Status InstructionRing::Enqueue(Stream& stream, NoteRef place) {
  return stream.RunOnHost([this, place] {
    Note(place);
    return absl::OkStatus();
  });
}

void InstructionRing::Note(NoteRef place) {
  const int64_t now = std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  const std::lock_guard<std::mutex> lock(mutex_);
  StreamNotes& stream = streams_[place.stream];
  if (place.ends != 0 && stream.count > 0) {
    InstructionNote& last = stream.notes[(stream.count - 1) % kKept];
    const bool begun = last.run == run_ && last.id == static_cast<InstructionId>(place.id) &&
                       last.iteration == static_cast<int32_t>(place.iteration) && last.finished_ns == 0;
    if (begun) {
      last.finished_ns = now;
      return;
    }
  }
  stream.notes[stream.count++ % kKept] = {.program = program_,
                                          .run = run_,
                                          .id = static_cast<InstructionId>(place.id),
                                          .iteration = static_cast<int32_t>(place.iteration),
                                          .stream = static_cast<StreamId>(place.stream),
                                          .begun_ns = place.ends != 0 ? 0 : now,
                                          .finished_ns = place.ends != 0 ? now : 0};
}

std::vector<InstructionNote> InstructionRing::notes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<InstructionNote> notes;
  for (const StreamNotes& stream : streams_) {
    for (size_t i = stream.count > kKept ? stream.count - kKept : 0; i < stream.count; ++i) {
      notes.push_back(stream.notes[i % kKept]);
    }
  }
  return notes;
}

absl::StatusOr<std::unique_ptr<RankRuntime>> RankRuntime::Create(Device& device, Ops& ops,
                                                                 const RankCommunicators& communicators,
                                                                 const Mesh& mesh, int rank, int64_t arena_bytes,
                                                                 const HostMemoryPlan& host_memory) {
  std::unique_ptr<RankRuntime> runtime(new RankRuntime(device, ops, communicators, mesh, rank, host_memory));
  SHALE_ASSIGN_OR_RETURN(runtime->arena_, device.Allocate(arena_bytes));
  SHALE_ASSIGN_OR_RETURN(runtime->pinned_, device.AllocatePinned(host_memory.total_bytes()));
  runtime->meter_ = std::make_unique<MemoryMeter>(runtime->arena_->base(), arena_bytes);
  for (int s = 0; s < kStreams; ++s) {
    const StreamId id = static_cast<StreamId>(s);
    // Only programs that update on the host have that stream (CreateHostStream).
    if (id != StreamId::kHost) SHALE_RETURN_IF_ERROR(runtime->CreateStream(id));
  }
  runtime->device_is_host_ = CpuStream::From(runtime->stream(StreamId::kCompute)).ok();
  return runtime;
}

absl::Status RankRuntime::CreateStream(StreamId id) {
  std::unique_ptr<Stream>& stream = streams_[static_cast<int>(id)];
  SHALE_ASSIGN_OR_RETURN(stream, device_.CreateStream(ToString(id)));
  stream->set_meter(meter_.get());
  return absl::OkStatus();
}

absl::Status RankRuntime::CreateHostStream() {
  return has_stream(StreamId::kHost) ? absl::OkStatus() : CreateStream(StreamId::kHost);
}

std::byte* RankRuntime::Address(const MemoryPlan& plan, const Location& where) {
  const int64_t address = plan.addresses[where.symbol];
  std::byte* const buffer =
      address >= kHostMemoryBegin ? offloaded().data() + (address - kHostMemoryBegin) : arena_->base() + address;
  return buffer + where.offset_bytes + shard() * where.shard_stride_bytes;
}

bool RankRuntime::IsPinned(const void* memory, int64_t bytes) const {
  const auto begin = reinterpret_cast<uintptr_t>(memory), pinned = reinterpret_cast<uintptr_t>(pinned_->base());
  return begin >= pinned && begin + bytes <= pinned + pinned_->size_bytes();
}

absl::Status RankRuntime::Read(const std::byte* from, void* to, int64_t bytes) {
  if (IsPinned(to, bytes)) return stream(StreamId::kCopy).CopyAndWait(to, from, bytes);
  for (int64_t at = 0; at < bytes; at += host_memory_.transfer_bytes) {
    const int64_t count = std::min(host_memory_.transfer_bytes, bytes - at);
    SHALE_RETURN_IF_ERROR(stream(StreamId::kCopy).CopyAndWait(pinned_->base(), from + at, count));
    std::memcpy(static_cast<std::byte*>(to) + at, pinned_->base(), count);
  }
  return absl::OkStatus();
}

absl::Status RankRuntime::Write(std::byte* to, const void* from, int64_t bytes) {
  if (IsPinned(from, bytes)) return stream(StreamId::kCopy).CopyAndWait(to, from, bytes);
  for (int64_t at = 0; at < bytes; at += host_memory_.transfer_bytes) {
    const int64_t count = std::min(host_memory_.transfer_bytes, bytes - at);
    std::memcpy(pinned_->base(), static_cast<const std::byte*>(from) + at, count);
    SHALE_RETURN_IF_ERROR(stream(StreamId::kCopy).CopyAndWait(to + at, pinned_->base(), count));
  }
  return absl::OkStatus();
}

void RankRuntime::Stop(const absl::Status& reason) {
  Abort(reason);
  for (const auto& stream : streams_) {
    if (stream != nullptr) stream->Synchronize().IgnoreError();  // `reason` is the error that counts.
  }
}

int64_t BlockedNs(RankRuntime& rank) {
  const absl::StatusOr<CpuStream*> stream = CpuStream::From(rank.stream(StreamId::kCompute));
  return stream.ok() ? (*stream)->blocked_ns() : 0;
}

}  // namespace shale
