// The pinned host memory of one rank. Like its arena it is one piece, allocated once before anything runs, and its size
// follows from the programs: all that iterations between the host and the rank's device lies in it.
#pragma once

#include <array>
#include <cstdint>

#include "absl/types/span.h"
#include "engine/memory/plan.h"
#include "engine/program/program.h"

namespace shale {

// Where the items of a program's HostCopy instructions lie, for all iterations: copies need not wait for one another,
// nor the host for them.
class HostItemLayout {
 public:
  explicit HostItemLayout(const StepProgram& program);

  struct Range {
    int64_t offset_bytes = 0;
    int64_t iteration_bytes = 0;  // Of one iteration; one after the other.
    int64_t iterations = 0;       // 0: the program has no such item.
    int64_t size_bytes() const { return iteration_bytes * iterations; }
  };
  const Range& range(HostItem item) const { return ranges_[static_cast<int>(item)]; }
  int64_t size_bytes() const { return size_bytes_; }

 private:
  std::array<Range, static_cast<int>(HostItem::kLogits) + 1> ranges_;
  int64_t size_bytes_ = 0;
};

// The parts of that memory, one after the other, each beginning at a multiple of kHostPartAlignment.
inline constexpr int64_t kHostPartAlignment = 4096;
struct HostMemoryPlan {
  // What RankRuntime::Read and Write copy at a time.
  int64_t transfer_bytes = int64_t{256} << 10;
  // What is filled in, restored and saved comes through it.
  int64_t staging_bytes = 0;
  // Of the program with the most items: of all programs one runs at a time.
  int64_t items_bytes = 0;
  // Of the program that offloads most, likewise.
  int64_t offload_bytes = 0;
  int64_t total_bytes() const { return transfer_bytes + staging_bytes + items_bytes + offload_bytes; }
};
struct HostMemoryUser {
  const StepProgram& program;
  const MemoryPlan& memory;
};
HostMemoryPlan PlanHostMemory(absl::Span<const HostMemoryUser> users, int64_t staging_bytes);

}  // namespace shale
