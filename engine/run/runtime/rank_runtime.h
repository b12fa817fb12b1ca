// RankRuntime: the resources on which one rank runs.
//
// Marks number everything that a rank enqueues, over all its programs: each instruction that it issues, or each graph
// that it launches. With them a stream can tell how far it came (Stream::Mark). Not every number reaches a stream. Mark
// 0 stands for none, so 1 follows the highest number.
//
// InstructionRing: what the streams of a rank did last, for the report of a failed run.
//
// BlockedNs: how long a rank's computation has waited for other ranks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/compile/memory/plan.h"
#include "engine/compile/program/program.h"
#include "kernels/device/device.h"
#include "kernels/op_backend.h"
#include "sharding/comm/communicator.h"
#include "sharding/mesh.h"

namespace shale {

inline uint32_t MarkAfter(uint32_t mark) { return mark == UINT32_MAX ? 1 : mark + 1; }

// Returns how often MarkAfter has to be applied to `from` to reach `to`: 1 if `to` follows `from`. If `to` is the
// smaller number, the way leads around, past the highest number.
inline uint32_t MarksBetween(uint32_t from, uint32_t to) { return to - from - (to < from ? 1 : 0); }

// An instruction that a stream has come to, after all that the instruction waits for.
struct InstructionNote {
  const StepProgram* program = nullptr;
  int64_t run = 0;  // Counts the runs of all programs on the rank, from 1: equal numbers mean the same on all ranks.
  InstructionId id = 0;
  int32_t iteration = 0;
  StreamId stream = StreamId::kCompute;
  int64_t begun_ns = 0;     // On the host's steady clock. 0: not noted.
  int64_t finished_ns = 0;  // 0: it has not finished.
};

// Notes when collectives begin and end, and when some of the other instructions end. The streams of a CPU make the
// notes themselves; other devices would be slowed down by that, so nothing is noted on them.
class InstructionRing {
 public:
  static constexpr size_t kKept = 64;  // Notes of each stream.

  // Begins a run of a program, which must outlive the ring's use. REQUIRES: no stream has work that makes notes.
  void BeginRun(const StepProgram& program);
  int64_t run() const { return run_; }  // The run that has begun last. Used by the rank's launching thread.

  // Enqueue a note on a stream of a CPU: that it has come to the instruction, or has finished it.
  absl::Status EnqueueBegin(Stream& stream, StreamId id, InstructionId instruction, int64_t iteration);
  absl::Status EnqueueEnd(Stream& stream, StreamId id, InstructionId instruction, int64_t iteration);

  // Returns the notes, stream by stream, each in order. Any thread may call it.
  std::vector<InstructionNote> notes() const;

 private:
  // What a stream's work refers to. Small, so that enqueueing it allocates nothing.
  struct NoteRef {
    uint32_t id;
    uint32_t iteration : 28;
    uint32_t stream : 3;
    uint32_t ends : 1;
  };
  struct StreamNotes {
    std::array<InstructionNote, kKept> notes;
    size_t count = 0;  // Notes so far.
  };
  absl::Status Enqueue(Stream& stream, NoteRef place);
  void Note(NoteRef place);

  int64_t run_ = 0;
  mutable std::mutex mutex_;  // Guards the fields below, and run_ but for its reads in the launching thread.
  const StepProgram* program_ = nullptr;
  std::array<StreamNotes, kStreams> streams_;
};

// The communicators of one rank, borrowed. A group of one rank has none.
class RankCommunicators {
 public:
  void Set(MeshAxis axis, StreamId stream, Communicator* communicator) { at(axis, stream) = communicator; }
  Communicator* Get(MeshAxis axis, StreamId stream) const {
    return const_cast<RankCommunicators*>(this)->at(axis, stream);
  }
  // Makes the collectives of all groups fail with `reason`.
  void Abort(const absl::Status& reason) const {
    for (Communicator* communicator : all_) {
      if (communicator != nullptr) communicator->Abort(reason);
    }
  }

 private:
  Communicator*& at(MeshAxis axis, StreamId stream) {
    return all_[static_cast<size_t>(axis) * kStreams + static_cast<size_t>(stream)];
  }
  std::array<Communicator*, kMeshAxes* kStreams> all_ = {};
};

// A rank's memory, streams, ops and communicators. The executors of a job's programs share it; only one of them runs at
// a time. Borrows the device, the ops and the communicators.
class RankRuntime {
 public:
  static absl::StatusOr<std::unique_ptr<RankRuntime>> Create(Device& device, Ops& ops,
                                                             const RankCommunicators& communicators, const Mesh& mesh,
                                                             int rank, int64_t arena_bytes,
                                                             const HostMemoryPlan& host_memory);

  Ops& ops() { return ops_; }
  int rank() const { return rank_; }  // In the mesh.
  // Returns the index of the shard that this rank owns of each flat group.
  int shard() const { return mesh_.index(rank_, MeshAxis::kShard); }
  Arena& arena() { return *arena_; }
  Device& device() { return device_; }
  // Return parts of the pinned memory. host_items() is for the program that is running. staging() is for filling in,
  // restoring or saving the state, one of these at a time.
  absl::Span<std::byte> host_items() { return {staging().end(), static_cast<size_t>(host_memory_.items_bytes)}; }
  absl::Span<std::byte> staging() {
    return {pinned_->base() + host_memory_.transfer_bytes, static_cast<size_t>(host_memory_.staging_bytes)};
  }
  // Returns the part of the pinned memory for the rank's offloaded state, and for the tensors that the running program
  // offloads.
  absl::Span<std::byte> offloaded() { return {host_items().end(), static_cast<size_t>(host_memory_.offload_bytes)}; }
  // Returns a stream. REQUIRES: it is not kHost, or has_stream(kHost).
  Stream& stream(StreamId id) { return *streams_[static_cast<int>(id)]; }
  // Creates kHost, which few programs use, unless it exists. The other streams always exist.
  absl::Status CreateHostStream();
  bool has_stream(StreamId id) const { return streams_[static_cast<int>(id)] != nullptr; }
  // Returns the address at which this rank has a tensor of a program with this plan.
  std::byte* Address(const MemoryPlan& plan, const Location& where);
  // Copy between the rank's memory (the arena or offloaded()) and any host memory, and wait for the copies. Memory that
  // is not pinned is copied through pinned memory, a part at a time. Call them only while no program runs, or while it
  // pauses (Pause), on the rank's launching thread or on a thread that acts in its place.
  absl::Status Read(const std::byte* from, void* to, int64_t bytes);
  absl::Status Write(std::byte* to, const void* from, int64_t bytes);
  // Returns whether the host can read and write an address of the rank's memory without a copy.
  bool HostAccesses(const std::byte* address) const { return device_is_host_ || IsPinned(address, 1); }
  // Returns whether memory is part of the rank's pinned memory, which streams copy without the host.
  bool IsPinned(const void* memory, int64_t bytes) const;
  // Returns the communicator for collectives along `axis` on a stream, or null if there is none.
  Communicator* communicator(MeshAxis axis, StreamId stream) const {
    return communicators_.Get(mesh_.Serving(axis), stream);
  }
  // Returns the next mark for Stream::Mark (see rank_runtime.h).
  uint32_t NextMark() { return last_mark_ = MarkAfter(last_mark_); }
  uint32_t last_mark() const { return last_mark_; }
  // Returns the rank's last instructions, and whether its device lets streams note them.
  InstructionRing& ring() { return ring_; }
  bool makes_notes() const { return device_is_host_; }
  // Returns one past the highest byte of the arena that any launch or copy has accessed. Measured independently of the
  // plan.
  int64_t measured_peak_bytes() const { return meter_->peak_bytes(); }
  // Makes the collectives of this rank and its peers fail with `reason`, which unblocks them. Any thread may call.
  void Abort(const absl::Status& reason) { communicators_.Abort(reason); }
  // Calls Abort, then waits until the streams have finished all their work, which may refer to memory that its owner is
  // about to free.
  void Stop(const absl::Status& reason);

 private:
  RankRuntime(Device& device, Ops& ops, const RankCommunicators& communicators, const Mesh& mesh, int rank,
              const HostMemoryPlan& host_memory)
      : device_(device),
        ops_(ops),
        communicators_(communicators),
        mesh_(mesh),
        rank_(rank),
        host_memory_(host_memory) {}
  absl::Status CreateStream(StreamId id);

  Device& device_;
  Ops& ops_;
  const RankCommunicators communicators_;
  const Mesh mesh_;
  const int rank_;
  const HostMemoryPlan host_memory_;
  uint32_t last_mark_ = 0;
  InstructionRing ring_;
  bool device_is_host_ = false;  // The device is the CPU.
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Arena> pinned_;  // Laid out as in host_memory_.
  std::unique_ptr<MemoryMeter> meter_;
  std::array<std::unique_ptr<Stream>, kStreams> streams_;  // Declared last, so that their threads end first.
};

// Returns how long the compute stream has waited so far for work of the rank's other streams: collectives, which wait
// for other ranks, and copies. 0 on devices other than CPUs, which do not measure it. Call it on the rank's launching
// thread, or after the rank's programs have ended.
int64_t BlockedNs(RankRuntime& rank);

}  // namespace shale
