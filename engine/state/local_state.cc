#include "engine/state/local_state.h"

#include <algorithm>
#include <set>
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

LocalState::LocalState(const ModelGraph& model, const JobState& state, const MemoryPlan& plan, LocalRanks& ranks)
    : model_(model), local_(ranks) {
  for (RankRuntime* runtime : ranks.runtimes()) ranks_.emplace_back(model, state, plan, *runtime);
}

absl::Status LocalState::Restore(const CheckpointReader& checkpoint, bool values_only) {
  return local_.ForEach([&](int local) {
    SHALE_ASSIGN_OR_RETURN(const absl::Span<char> staging, StagingOf(local_[local], kReadStagingBytes));
    return ranks_[local].Restore(checkpoint, values_only, staging);
  });
}

absl::Status LocalState::Fill(RankState::ReadValues read) {
  return local_.ForEach([&](int local) {
    SHALE_ASSIGN_OR_RETURN(const absl::Span<char> staging, StagingOf(local_[local], kReadStagingBytes));
    return ranks_[local].Fill(read, staging);
  });
}

absl::StatusOr<ParameterId> LocalState::Find(absl::string_view name) const {
  for (size_t id = 0; id < model_.parameters.size(); ++id) {
    if (model_.parameters[id].name == name) return static_cast<ParameterId>(id);
  }
  return absl::NotFoundError(absl::StrCat("the model has no parameter ", name));
}

absl::StatusOr<ParameterId> LocalState::Find(absl::string_view name, int64_t elements) const {
  SHALE_ASSIGN_OR_RETURN(const ParameterId id, Find(name));
  if (model_.parameters[id].elements() != elements) {
    return absl::InvalidArgumentError(absl::StrCat("parameter ", name, " has ", model_.parameters[id].elements(),
                                                   " elements, the caller gave ", elements));
  }
  return id;
}

absl::Status LocalState::Write(ParameterId id, int64_t begin, absl::Span<const float> values) {
  for (RankState& rank : ranks_) SHALE_RETURN_IF_ERROR(rank.Write(id, begin, values));
  return absl::OkStatus();
}

absl::Status LocalState::Read(ParameterId id, int64_t begin, absl::Span<float> values) const {
  return Read(RankState::Values::kWeights, id, begin, values);
}

absl::Status LocalState::ReadGradient(ParameterId id, int64_t begin, absl::Span<float> values) const {
  return Read(RankState::Values::kGradient, id, begin, values);
}

absl::Status LocalState::Read(RankState::Values what, ParameterId id, int64_t begin, absl::Span<float> values) const {
  int64_t missing = std::ssize(values);
  std::set<int> shards;  // The shards that have been read. Replicas of a shard hold the same values, so one is enough.
  for (int local = 0; local < size() && missing > 0; ++local) {  // One rank is enough if it holds all.
    if (!shards.insert(local_.mesh().index(local_.number(local), MeshAxis::kShard)).second) continue;
    SHALE_ASSIGN_OR_RETURN(const int64_t read, ranks_[local].Read(what, id, begin, values));
    missing -= read;
  }
  if (missing <= 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("ranks of other processes hold ", missing, " of the ",
                                                    values.size(), " elements of ", model_.parameters[id].name,
                                                    " that are to be read"));
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
