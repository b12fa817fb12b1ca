// RankRuntime: what one rank runs on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/memory/host_plan.h"
#include "engine/program/program.h"
#include "kernels/device/device.h"
#include "kernels/op_backend.h"
#include "sharding/comm/communicator.h"

namespace shale {

// A rank's memory, streams, ops and communicators. Shared by the executors of a job's programs, of which one runs at a
// time. Borrows ops and communicators. With one rank the communicators may be null.
class RankRuntime {
 public:
  static absl::StatusOr<std::unique_ptr<RankRuntime>> Create(Device& device, Ops& ops, Communicator* gather,
                                                             Communicator* reduce, int rank, int64_t arena_bytes,
                                                             const HostMemoryPlan& host_memory);

  Ops& ops() { return ops_; }
  int rank() const { return rank_; }
  Arena& arena() { return *arena_; }
  Device& device() { return device_; }
  // Parts of the pinned memory: for the one program that runs, and for the one thing that fills, restores or saves the
  // state.
  absl::Span<std::byte> host_items() { return {staging().end(), static_cast<size_t>(host_memory_.items_bytes)}; }
  absl::Span<std::byte> staging() {
    return {pinned_->base() + host_memory_.transfer_bytes, static_cast<size_t>(host_memory_.staging_bytes)};
  }
  // For what the one program that runs offloads.
  absl::Span<std::byte> offloaded() { return {host_items().end(), static_cast<size_t>(host_memory_.offload_bytes)}; }
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
  RankRuntime(Device& device, Ops& ops, Communicator* gather, Communicator* reduce, int rank,
              const HostMemoryPlan& host_memory)
      : device_(device), ops_(ops), gather_(gather), reduce_(reduce), rank_(rank), host_memory_(host_memory) {}
  Device& device_;
  Ops& ops_;
  Communicator* gather_;
  Communicator* reduce_;
  int rank_;
  const HostMemoryPlan host_memory_;
  uint32_t marks_ = 0;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Arena> pinned_;  // As host_memory_ says.
  std::unique_ptr<MemoryMeter> meter_;
  std::array<std::unique_ptr<Stream>, kStreams> streams_;  // Last: their threads end first.
};

}  // namespace shale
