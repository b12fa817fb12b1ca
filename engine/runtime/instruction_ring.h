// InstructionRing: what the streams of a rank did last, for the report of a failed run.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "engine/program/program.h"
#include "kernels/device/device.h"

namespace shale {

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
  struct Place {
    uint32_t id;
    uint32_t iteration : 28;
    uint32_t stream : 3;
    uint32_t ends : 1;
  };
  struct StreamNotes {
    std::array<InstructionNote, kKept> notes;
    size_t count = 0;  // Notes so far.
  };
  absl::Status Enqueue(Stream& stream, Place place);
  void Note(Place place);

  int64_t run_ = 0;
  mutable std::mutex mutex_;  // Guards the fields below, and run_ but for its reads in the launching thread.
  const StepProgram* program_ = nullptr;
  std::array<StreamNotes, kStreams> streams_;
};

}  // namespace shale
