// ProfilerRanges: tells a profiler what a rank's launching thread is enqueueing, in nested ranges with names.
//
// CreateNvtxRanges makes them ranges of NVIDIA's Tools Extension (NVTX 3), which Nsight Systems and other profilers
// read: https://nvidia.github.io/NVTX/doxygen/index.html
//
// ProgramRanges names what an executor enqueues, in the words of its program.
//
// The lane "shale" has a range for each run of the program. Each stream has a lane, such as "shale compute", with
// ranges for the micro-batch, for the phase and unit ("backward blocks.3") and for the instruction ("MatMul").
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/compile/program/program.h"

namespace shale {

// A profiler shows the ranges of each lane as a line of its own. The ranges of one thread in one lane are nested: Pop
// ends the one that was pushed last. Thread-safe; each thread has its own ranges.
class ProfilerRanges {
 public:
  using Name = const void*;
  virtual ~ProfilerRanges() = default;

  // Lanes are created on first use and named by the caller. Returns the number of the lane with this name.
  virtual int Lane(const std::string& name) = 0;
  // Prepares a name for ranges in `lane`, so that Push need not copy it. The result is valid as long as this object.
  virtual Name Register(int lane, const std::string& name) = 0;
  // Begins a range. `number` is shown beside the name.
  virtual void Push(int lane, Name name, int64_t number) = 0;
  virtual void Pop(int lane) = 0;
};

// Returns whether a profiler that started this process wants ranges. NVTX finds such a profiler by the environment
// variable NVTX_INJECTION64_PATH.
bool ProfilerWantsNvtxRanges();

// Creates ranges whose lanes are NVTX domains. Without a profiler they cost a few nanoseconds each. Returns
// Unimplemented if the program was built without a CUDA toolkit, which has the headers.
absl::StatusOr<std::unique_ptr<ProfilerRanges>> CreateNvtxRanges();

// Used by the rank's launching thread, after its creation. Borrows both arguments. Allocates nothing while it runs.
class ProgramRanges {
 public:
  ProgramRanges(const StepProgram& program, ProfilerRanges& profiler);

  // Surround a run of the program. EndRun ends all ranges that are still open.
  void BeginRun();
  void EndRun();
  // Surround what one instruction enqueues. The ranges of its unit and micro-batch stay open until an instruction of
  // the same stream has others.
  void BeginIssue(InstructionId id, int64_t iteration);
  void EndIssue(InstructionId id);
  // Surround the launch of the graph of an iteration of a loop.
  void BeginLaunch(size_t loop, int64_t iteration);
  void EndLaunch();

 private:
  struct Lane {
    int number = 0;
    ProfilerRanges::Name micro_batch = nullptr;
    // The open ranges; -1: none.
    int64_t open_micro_batch = -1;
    int open_work = -1;
  };

  void EndWork(Lane& lane);
  void EndMicroBatch(Lane& lane);
  Lane& LaneOf(InstructionId id) { return lanes_[static_cast<int>(program_.instructions[id].stream)]; }

  const StepProgram& program_;
  ProfilerRanges& profiler_;
  int step_lane_ = 0;
  ProfilerRanges::Name step_ = nullptr;
  std::vector<ProfilerRanges::Name> launches_;  // By loop.
  std::vector<Lane> lanes_;                     // By stream.
  // By instruction: its name, the number of its phase and unit, and the name of these in the lane of its stream.
  std::vector<ProfilerRanges::Name> instructions_;
  std::vector<int> works_;
  std::vector<ProfilerRanges::Name> work_names_;
  int64_t runs_ = 0;
};

}  // namespace shale
