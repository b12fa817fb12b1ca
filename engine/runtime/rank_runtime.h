// RankRuntime: what one rank runs on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/step/program.h"
#include "kernels/device/device.h"
#include "kernels/op_backend.h"
#include "sharding/comm/communicator.h"

namespace shale {

// A rank's arena, streams, ops and communicators. Shared by the executors of a job's programs, of which one runs at a
// time. Borrows ops and communicators. With one rank the communicators may be null.
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

}  // namespace shale
