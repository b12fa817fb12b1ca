// The memory plan: an address for every buffer of a program, in the arena or in host memory. Also the waits that it
// needs, and the proof that no byte is overwritten while it is still needed.
//
// A buffer is live from its first to its last access in issue order, or longer (see Lifetime). Two buffers whose
// lifetimes overlap never share bytes. Two buffers that do share bytes are kept apart in time by waits (DeriveWaits).
//
// HostMemoryPlan: the pinned host memory of one rank. Like the arena, it is one piece that is allocated once, before
// anything runs, and its size follows from the programs. All data that passes between the host and the rank's device
// goes through it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/compile/program/live_bytes.h"
#include "engine/compile/program/program.h"
#include "engine/compile/program/work_limits.h"

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
  // smaller. Of host memory only PlanWithoutSharing computes it.
  int64_t lower_bound_bytes = 0;
  int64_t lower_bound_host_bytes = 0;
  InstructionId peak_instruction = 0;                         // The first instruction that reaches that sum.
  std::array<int64_t, kBufferCategories> bytes_at_peak = {};  // Live bytes there, by category. Their sum is the bound.
  std::vector<BufferId> largest_at_peak;                      // The buffers live there, largest first, at most 12.
};

// Plans the memory of one program. Deterministic. The plan is the same for every K above 1 that leaves the buffers'
// sizes unchanged. All programs of a job begin with the same persistent buffers, in the same order and of the same
// sizes. These get the same addresses in every program, whether it uses them or not. Returns InvalidArgument if an
// option is out of range, Internal if the program is malformed (see program.h), and ResourceExhausted if its bytes do
// not fit int64.
absl::StatusOr<MemoryPlan> PlanMemory(const StepProgram& program, const MemoryPlanOptions& options);

// Gives every buffer bytes that it shares with none, and sets nothing but the addresses and the two lower bounds. Waits
// that are derived from such a plan are those of the data alone: any plan of PlanMemory has these, and more where
// buffers share bytes. Takes a small part of the time of PlanMemory. REQUIRES: CheckStructure (program.h) accepts the
// program.
absl::StatusOr<MemoryPlan> PlanWithoutSharing(const StepProgram& program);

// The places of the items that a program's StepItemCopy instructions copy. Every iteration has a place of its own, so
// copies do not wait for each other, and the host does not wait for copies.
class StepItemLayout {
 public:
  explicit StepItemLayout(const StepProgram& program);

  struct Range {
    int64_t offset_bytes = 0;
    int64_t iteration_bytes = 0;  // Bytes of one iteration. Iterations lie one after another.
    int64_t iterations = 0;       // 0 if the program does not copy this item.
    int64_t size_bytes() const { return iteration_bytes * iterations; }
  };
  const Range& range(StepItem item) const { return ranges_[static_cast<int>(item)]; }
  int64_t size_bytes() const { return size_bytes_; }

 private:
  std::array<Range, kStepItems> ranges_;
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

// Fills in every instruction's `waits` from the byte ranges that instructions read and write. A read waits for the last
// write of its bytes. A write waits for the last write and for all reads since then. Waits within a stream are left
// out, and so are those that earlier waits and FIFO order already imply. This orders both the flow of data and the
// reuse of addresses.
//
// A wait names an instruction and means its most recent issue, if there was any. In a loop, an instruction may wait for
// a later one: that means the issue of the preceding iteration. Every issue that is waited for comes earlier in issue
// order, so waits cannot form a cycle. Waits are sorted in ascending order.
//
// [Note: three iterations are enough] Loops are simulated for min(K, 3) iterations, and an instruction gets the waits
// that any of these iterations needs: the first one, which may depend on instructions before the loop; one from the
// middle; and the last one, which may issue instructions that the others do not. One from the middle stands for all: an
// instruction waits only for issues of the same or the preceding iteration, and the waits that make another one
// redundant are of these two as well. So each iteration from the middle has the waits of the one before it, shifted by
// one.
//
// Operands whose place depends on the rank or the micro-batch count as their whole buffer.
void DeriveWaits(StepProgram& program, const MemoryPlan& plan);

// Computes the order of all accesses from the FIFO order of streams and from `waits` alone, without DeriveWaits, and
// checks that
// - operands lie inside their buffers, and buffers that are used lie inside the plan;
// - every wait names an instruction of another stream that is issued earlier, so that waits form no cycle;
// - if two instructions access the same byte and at least one of them writes it, the one issued first has finished
// before the other one starts;
// - a read finds the bytes that the last writer of its own buffer left there, not bytes that were never written or that
// belong to another buffer. Persistent buffers count as written from the start. A strided operand counts with its gaps;
// - an instruction does not write bytes on which another of its operands lies, unless both are in the same buffer.
//
// Loops are unrolled for min(K, 5) iterations: the first two, two that stand for all iterations in the middle, and the
// last. This is more than [Note: three iterations are enough] requires. Operands whose place depends on the
// rank or the micro-batch count as their whole buffer in the third and the fifth check. The fourth check uses their
// place on rank 0. For an iteration that stands for several iterations, it uses all bytes from the slot of the first
// one to the slot of the last one.
//
// Returns Internal for the first violation. The message names both instructions, their buffers and the bytes. Returns
// the error of `limits`, which it looks at instruction by instruction, if the work must end.
absl::Status CheckProgram(const StepProgram& program, const MemoryPlan& plan, const WorkLimits& limits = {});

}  // namespace shale
