// Lifetimes: the instructions during which a buffer must keep its bytes. LiveBytes: the bytes of the arena that are
// live at each instruction of a program.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/compile/program/program.h"

namespace shale {

// A buffer holds its bytes during instructions [first, last] of one program, in issue order. For a buffer that is never
// used, first > last.
struct Lifetime {
  InstructionId first = 0;
  InstructionId last = -1;
  bool used() const { return first <= last; }
  bool operator==(const Lifetime&) const = default;
};

// Returns the lifetime of every buffer, by BufferId.
//
// Persistent buffers live for the whole program. Any other buffer lives from its first to its last access, or to
// `held_until` if that is later. A buffer that is used in a loop that repeats may be needed by the next iteration too.
// It therefore lives for the whole loop, unless it is used only inside that loop and every iteration writes all bytes
// that it reads before it reads them. So a buffer in which micro-batches accumulate lives during their entire loop if
// K > 1, but only from its first write on if K = 1.
//
// A strided operand counts as all bytes from its first to its last. When the parts of a [T, 3, H, D] buffer are written
// one by one, they therefore cover the whole buffer. REQUIRES: CheckStructure (program.h) accepts the program.
std::vector<Lifetime> ComputeLifetimes(const StepProgram& program);

// Live bytes in the arena, without alignment and red zones.
struct LiveBytes {
  std::array<int64_t, kBufferCategories> by_category = {};
  int64_t total = 0;

  // Adds the bytes of a buffer `times` times. With times = -1, subtracts them.
  void Add(const Buffer& buffer, int64_t times = 1) {
    by_category[static_cast<int>(buffer.category)] += times * buffer.size_bytes();
    total += times * buffer.size_bytes();
  }
};

// Returns the bytes of the persistent buffers, which are all that is live between steps.
LiveBytes PersistentBytes(const StepProgram& program);

// The transient buffers of the arena whose lifetimes begin or end at one instruction.
struct LiveChange {
  std::vector<BufferId> begins;  // Live from this instruction on.
  std::vector<BufferId> ends;    // Live until this instruction has finished.
};

// Returns the changes at each instruction, by InstructionId. `lifetimes` is the result of ComputeLifetimes.
std::vector<LiveChange> LiveChanges(const StepProgram& program, const std::vector<Lifetime>& lifetimes);

// Calls visitor(InstructionId, const LiveBytes&) for each instruction, in issue order. Visits the body of a loop once,
// because the same buffers are live in every iteration.
template <class Visitor>
void VisitLiveBytes(const StepProgram& program, Visitor&& visitor) {
  const std::vector<LiveChange> changes = LiveChanges(program, ComputeLifetimes(program));
  LiveBytes live = PersistentBytes(program);
  for (size_t id = 0; id < changes.size(); ++id) {
    for (BufferId b : changes[id].begins) live.Add(program.buffers[b]);
    visitor(static_cast<InstructionId>(id), std::as_const(live));
    for (BufferId b : changes[id].ends) live.Add(program.buffers[b], -1);
  }
}

}  // namespace shale
