#include "engine/runtime/rank_runtime.h"

#include <algorithm>
#include <cstring>

#include "kernels/check.h"
#include "kernels/device/cpu/cpu_stream.h"

namespace shale {

absl::StatusOr<std::unique_ptr<RankRuntime>> RankRuntime::Create(Device& device, Ops& ops,
                                                                 const RankCommunicators& communicators,
                                                                 const Mesh& mesh, int rank, int64_t arena_bytes,
                                                                 const HostMemoryPlan& host_memory) {
  std::unique_ptr<RankRuntime> runtime(new RankRuntime(device, ops, communicators, mesh, rank, host_memory));
  SHALE_ASSIGN_OR_RETURN(runtime->arena_, device.Allocate(arena_bytes));
  SHALE_ASSIGN_OR_RETURN(runtime->pinned_, device.AllocatePinned(host_memory.total_bytes()));
  runtime->meter_ = std::make_unique<MemoryMeter>(runtime->arena_->base(), arena_bytes);
  for (StreamId id : {StreamId::kCompute, StreamId::kGather, StreamId::kReduce, StreamId::kCopy}) {
    SHALE_RETURN_IF_ERROR(runtime->CreateStream(id));
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

}  // namespace shale
