// The pinned host memory of one rank. Like the arena, it is one piece that is allocated once, before anything runs, and
// its size follows from the programs. All data that passes between the host and the rank's device goes through it.
#pragma once

#include <array>
#include <cstdint>

#include "absl/types/span.h"
#include "engine/memory/plan.h"
#include "engine/program/program.h"

namespace shale {

// The places of the items that a program's HostCopy instructions copy. Every iteration has a place of its own, so
// copies do not wait for each other, and the host does not wait for copies.
class HostItemLayout {
 public:
  explicit HostItemLayout(const StepProgram& program);

  struct Range {
    int64_t offset_bytes = 0;
    int64_t iteration_bytes = 0;  // Bytes of one iteration. Iterations lie one after another.
    int64_t iterations = 0;       // 0 if the program does not copy this item.
    int64_t size_bytes() const { return iteration_bytes * iterations; }
  };
  const Range& range(HostItem item) const { return ranges_[static_cast<int>(item)]; }
  int64_t size_bytes() const { return size_bytes_; }

 private:
  std::array<Range, static_cast<int>(HostItem::kLogits) + 1> ranges_;
  int64_t size_bytes_ = 0;
};

// The parts of a rank's pinned memory. They lie one after another, and each begins at a multiple of kHostPartAlignment.
inline constexpr int64_t kHostPartAlignment = 4096;
struct HostMemoryPlan {
  // Bytes that RankRuntime::Read and Write copy at a time.
  int64_t transfer_bytes = int64_t{256} << 10;
  // Buffer through which state is filled in, restored and saved.
  int64_t staging_bytes = 0;
  // For the items of the program that needs the most. All programs share these bytes, because only one runs at a time.
  int64_t items_bytes = 0;
  // For the offloaded state, which has the same place in all programs, and for the offloaded tensors of the program
  // that needs the most. All programs share these bytes too.
  int64_t offload_bytes = 0;
  int64_t total_bytes() const { return transfer_bytes + staging_bytes + items_bytes + offload_bytes; }
};
// A program with its memory plan. Borrows both.
struct ProgramAndPlan {
  const StepProgram& program;
  const MemoryPlan& memory;
};
// Returns sizes that suffice for each of `programs`. Rounds `staging_bytes` up to a multiple of kHostPartAlignment.
HostMemoryPlan PlanHostMemory(absl::Span<const ProgramAndPlan> programs, int64_t staging_bytes);

}  // namespace shale
