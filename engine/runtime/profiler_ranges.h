// ProfilerRanges: tells a profiler what a rank's launching thread is enqueueing, in nested ranges with names.
#pragma once

#include <cstdint>
#include <string>

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

}  // namespace shale
