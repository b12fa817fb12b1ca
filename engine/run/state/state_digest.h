// StateDigest: checksums of the persistent state of a rank.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/compile/memory/plan.h"
#include "engine/compile/program/program.h"
#include "engine/compile/step/state.h"
#include "engine/run/runtime/rank_runtime.h"

namespace shale {

// CRC-32Cs of a rank's weights, masters and optimizer states, by who holds the same. One wrong bit always changes them.
struct StateDigest {
  uint32_t everywhere = 0;  // What every rank holds. The CRC of nothing under FULL_SHARD.
  uint32_t column = 0;      // The rank's shards, which the other ranks of its column of the mesh hold too, if any.
  bool operator==(const StateDigest&) const = default;
};

// Reads the state of a rank in the persistent buffers of a program with this plan: all of it, or only that of which
// other ranks hold copies. Call it on the rank's launching thread while no program runs, or while it pauses. Returns
// the errors of the device.
enum class Digested { kAll, kReplicas };
absl::StatusOr<StateDigest> DigestOfState(Digested what, const JobState& state, const MemoryPlan& plan,
                                          RankRuntime& rank);

// Returns the first instruction of a step, in issue order, that writes to the state, or -1 if none does. Until then the
// state is what the last step has left.
InstructionId FirstWriteOfState(const JobState& state, const StepProgram& program);

}  // namespace shale
