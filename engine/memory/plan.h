// The memory plan: an address in the arena for every buffer of a job's programs.
//
// A buffer is alive from its first to its last access in issue order, or longer (Lifetime). Two buffers whose lifetimes
// overlap never share bytes; two that do share bytes are kept apart in time by the waits of memory/waits.h.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/step/program.h"

namespace shale {

// Instructions [first, last] of one program during which a buffer holds its bytes. Persistent buffers: the whole program.
// An access inside a section that repeats, to a buffer that is also used outside it (or read before it is written in it),
// extends to the whole section: the next pass needs it. Never used: first > last.
struct Lifetime {
  InstructionId first = 0;
  InstructionId last = -1;
};
std::vector<Lifetime> ComputeLifetimes(const StepProgram& program);

struct MemoryPlanOptions {
  int64_t alignment_bytes = 256;
  // Unused bytes after every buffer: the checking executor looks for stray writes there.
  int64_t red_zone_bytes = 0;
};

struct MemoryPlan {
  std::vector<int64_t> addresses;  // By BufferId; bytes from the start of the arena. Buffers never used: 0.
  int64_t persistent_bytes = 0;    // [0, persistent_bytes) is the same in all programs of a job.
  int64_t peak_bytes = 0;          // One past the highest byte that this program uses.
  int64_t lower_bound_bytes = 0;   // Largest sum of live buffers at one instruction: no plan can be smaller.
  InstructionId peak_instruction = 0;                       // Where that sum is reached first.
  std::array<int64_t, kBufferCategories> bytes_at_peak = {};  // Live bytes there, by category.
  std::vector<BufferId> largest_at_peak;                    // Live there, largest first, at most 12.
};

// Plans one program. Deterministic. `persistent`: the persistent buffers of every program of the job are its first ones,
// in the same order and with the same sizes, so they get the same addresses.
absl::StatusOr<MemoryPlan> PlanMemory(const StepProgram& program, const MemoryPlanOptions& options);

}  // namespace shale
