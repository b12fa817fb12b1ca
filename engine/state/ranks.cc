#include "engine/state/ranks.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/checkpoint/staging.h"
#include "kernels/check.h"

namespace shale {
namespace {

std::string Describe(absl::string_view name, const std::vector<int64_t>& shape) {
  return absl::StrCat(name, " [", absl::StrJoin(shape, ", "), "]");
}

}  // namespace

std::vector<RankState> RankStates(const ModelGraph& model, const JobState& state, const MemoryPlan& plan,
                                  World& world) {
  std::vector<RankState> ranks;
  for (RankRuntime* runtime : world.ranks()) ranks.emplace_back(model, state, plan, *runtime);
  return ranks;
}

absl::StatusOr<absl::Span<char>> StagingOf(RankRuntime& rank, int64_t bytes) {
  const absl::Span<std::byte> staging = rank.staging();
  if (std::ssize(staging) < bytes) {
    return absl::InvalidArgumentError(absl::StrCat("reading or writing a rank's state needs ", bytes,
                                                   " bytes of staging, the rank has ", staging.size()));
  }
  return absl::MakeSpan(reinterpret_cast<char*>(staging.data()), staging.size());
}

absl::Status RestoreRanks(const CheckpointReader& checkpoint, bool values_only, World& world,
                          std::vector<RankState>& ranks) {
  return world.ForEachRank([&](int rank) {
    SHALE_ASSIGN_OR_RETURN(const absl::Span<char> staging, StagingOf(world.rank(rank), kReadStagingBytes));
    return ranks[rank].Restore(checkpoint, values_only, staging);
  });
}

absl::Status FillRanks(RankState::ReadValues read, World& world, std::vector<RankState>& ranks) {
  return world.ForEachRank([&](int rank) {
    SHALE_ASSIGN_OR_RETURN(const absl::Span<char> staging, StagingOf(world.rank(rank), kReadStagingBytes));
    return ranks[rank].Fill(read, staging);
  });
}

absl::Status CheckSameParameters(const std::vector<SavedParameter>& saved, const ModelGraph& model) {
  for (size_t i = 0; i < std::max(saved.size(), model.parameters.size()); ++i) {
    const std::string theirs = i < saved.size() ? Describe(saved[i].name, saved[i].shape) : "none";
    const std::string ours =
        i < model.parameters.size() ? Describe(model.parameters[i].name, model.parameters[i].shape) : "none";
    if (theirs == ours) continue;
    return absl::FailedPreconditionError(absl::StrCat("the checkpoint is of another run: its parameter ", i, " is ",
                                                      theirs, ", the job's model has ", ours));
  }
  return absl::OkStatus();
}

}  // namespace shale
