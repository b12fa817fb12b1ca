// The memory plan: an address for every buffer of a job's programs, in the arena or in host memory.
//
// A buffer is alive from its first to its last access in issue order, or longer (Lifetime). Two buffers whose lifetimes
// overlap never share bytes; two that do share bytes are kept apart in time by the waits of memory/waits.h.
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
  int64_t alignment_bytes = 256;  // Of addresses.
  // Bytes after every buffer that belong to nobody: the checking executor looks for stray writes there. Not counted in
  // peak_bytes behind the highest buffer, so that the measured peak still equals the planned one.
  int64_t red_zone_bytes = 0;
};

// Addresses of buffers in host memory count from here: no address is one of the arena and of host memory.
inline constexpr int64_t kHostMemoryBegin = int64_t{1} << 62;

struct MemoryPlan {
  // By BufferId: bytes from the start of the arena, or kHostMemoryBegin and bytes from the start of what the rank has
  // for offloaded tensors. Transient buffers never used: 0.
  std::vector<int64_t> addresses;
  int64_t persistent_bytes = 0;  // [0, persistent_bytes) is the same in all programs of a job.
  int64_t peak_bytes = 0;        // One past the last byte of the highest buffer of the arena.
  int64_t host_bytes = 0;        // Likewise of host memory.
  // Largest sum of live buffers of the arena at one instruction, without alignment and red zones: no plan can be
  // smaller.
  int64_t lower_bound_bytes = 0;
  InstructionId peak_instruction = 0;                         // Where that sum is reached first.
  std::array<int64_t, kBufferCategories> bytes_at_peak = {};  // Live bytes there, by category: their sum is the bound.
  std::vector<BufferId> largest_at_peak;                      // Live there, largest first, at most 12.
};

// Plans one program. Deterministic, and the same for any K that leaves the buffers' sizes alone. The persistent buffers
// of every program of a job are the same, in the same order and with the same sizes, so they get the same addresses,
// used or not. Internal: the program is malformed (see structure.h). ResourceExhausted: its bytes do not fit int64.
absl::StatusOr<MemoryPlan> PlanMemory(const StepProgram& program, const MemoryPlanOptions& options);

}  // namespace shale
