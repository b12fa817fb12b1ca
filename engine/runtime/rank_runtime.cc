#include "engine/runtime/rank_runtime.h"

#include <algorithm>
#include <cstring>

#include "kernels/check.h"

namespace shale {
namespace {

constexpr int64_t kBounceBytes = int64_t{256} << 10;

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
    SHALE_RETURN_IF_ERROR(stream(StreamId::kCopy).CopyAndWait(bounce_->base(), from + at, count));
    std::memcpy(static_cast<std::byte*>(to) + at, bounce_->base(), count);
  }
  return absl::OkStatus();
}

absl::Status RankRuntime::Write(std::byte* to, const void* from, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += kBounceBytes) {
    const int64_t count = std::min(kBounceBytes, bytes - at);
    std::memcpy(bounce_->base(), static_cast<const std::byte*>(from) + at, count);
    SHALE_RETURN_IF_ERROR(stream(StreamId::kCopy).CopyAndWait(to + at, bounce_->base(), count));
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

}  // namespace shale
