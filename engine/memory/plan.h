// The memory plan: an address for every buffer of a program, in the arena or in host memory.
//
// A buffer is live from its first to its last access in issue order, or longer (see Lifetime). Two buffers whose
// lifetimes overlap never share bytes. Two buffers that do share bytes are kept apart in time by the waits of
// memory/waits.h.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/program/lifetimes.h"
#include "engine/program/program.h"

namespace shale {

struct MemoryPlanOptions {
  int64_t alignment_bytes = 256;  // Alignment of addresses.
  // Number of unused bytes after every buffer, in which tests look for stray writes (tests/engine/arena_checker.h).
  // Those after the highest buffer do not count in peak_bytes, so that the measured peak still equals the planned one.
  int64_t red_zone_bytes = 0;
};

// Addresses of buffers in host memory begin here, so that no address belongs both to the arena and to host memory.
inline constexpr int64_t kHostMemoryBegin = int64_t{1} << 62;

struct MemoryPlan {
  // By BufferId. In the arena: bytes from its start. In host memory: kHostMemoryBegin plus bytes from the start of the
  // rank's memory for offloaded tensors and state. 0 for transient buffers that are never used.
  std::vector<int64_t> addresses;
  // Bytes [0, persistent_bytes) keep their contents from run to run. They are the same in all programs of a job, but
  // for the caches at their end, which only programs that generate have.
  int64_t persistent_bytes = 0;
  int64_t peak_bytes = 0;  // One past the last byte of the highest buffer in the arena.
  // The same for host memory.
  int64_t persistent_host_bytes = 0;
  int64_t host_bytes = 0;
  // The largest sum of live buffers in the arena at one instruction, without alignment and red zones. No plan can be
  // smaller.
  int64_t lower_bound_bytes = 0;
  InstructionId peak_instruction = 0;                         // The first instruction that reaches that sum.
  std::array<int64_t, kBufferCategories> bytes_at_peak = {};  // Live bytes there, by category. Their sum is the bound.
  std::vector<BufferId> largest_at_peak;                      // The buffers live there, largest first, at most 12.
};

// Plans the memory of one program. Deterministic. The plan is the same for every K above 1 that leaves the buffers'
// sizes unchanged. All programs of a job begin with the same persistent buffers, in the same order and of the same
// sizes. These get the same addresses in every program, whether it uses them or not. Returns InvalidArgument if an
// option is out of range, Internal if the program is malformed (see structure.h), and ResourceExhausted if its bytes do
// not fit int64.
absl::StatusOr<MemoryPlan> PlanMemory(const StepProgram& program, const MemoryPlanOptions& options);

}  // namespace shale
