// The state of all ranks that this process holds.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/checkpoint/reader.h"
#include "engine/memory/plan.h"
#include "engine/runtime/world.h"
#include "engine/state/rank_state.h"
#include "engine/step/compile.h"

namespace shale {

// Returns the state of every rank of a world, for the persistent buffers of a program. The states borrow everything.
std::vector<RankState> RankStates(const ModelGraph& model, const JobState& state, const MemoryPlan& plan, World& world);

// Returns the pinned staging memory of a rank. InvalidArgument if it has less than `bytes`.
absl::StatusOr<absl::Span<char>> StagingOf(RankRuntime& rank, int64_t bytes);

// Restores all ranks from a checkpoint whose parameters are the model's. Each rank reads on its own thread, through its
// own staging (kReadStagingBytes). See RankState::Restore. REQUIRES: no save is pending (it uses rank 0's staging).
absl::Status RestoreRanks(const CheckpointReader& checkpoint, bool values_only, World& world,
                          std::vector<RankState>& ranks);

// Sets the values of all ranks, in the same way. Several threads call `read` at the same time.
absl::Status FillRanks(RankState::ReadValues read, World& world, std::vector<RankState>& ranks);

// Checks that saved parameters are those of the model: names, shapes and order. FailedPrecondition names the first
// difference.
absl::Status CheckSameParameters(const std::vector<SavedParameter>& saved, const ModelGraph& model);

}  // namespace shale
