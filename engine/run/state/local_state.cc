#include "engine/run/state/local_state.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/files/checkpoint/shard_writer.h"
#include "engine/strings/messages.h"
#include "kernels/check.h"

namespace shale {
namespace {

std::string Describe(absl::string_view name, const std::vector<int64_t>& shape) {
  return absl::StrCat(name, " [", absl::StrJoin(shape, ", "), "]");
}

}  // namespace

LocalState::LocalState(const ModelGraph& model, const JobState& state, const MemoryPlan& plan, LocalRanks& ranks)
    : model_(model), state_(state), local_(ranks) {
  for (RankRuntime* runtime : ranks.runtimes()) ranks_.emplace_back(model, state, plan, *runtime);
}

absl::Status LocalState::Restore(const CheckpointReader& checkpoint, bool values_only) {
  return local_.ForEach([&](int local) {
    SHALE_ASSIGN_OR_RETURN(const absl::Span<char> staging, StagingOf(local_[local], kReadStagingBytes));
    return ranks_[local].Restore(checkpoint, values_only, staging);
  });
}

absl::Status LocalState::Fill(RankState::ReadValues read, const RankState::FillOptions& options) {
  std::vector<uint64_t> digests(ranks_.size());
  const bool digest = options.digest_of_frozen != nullptr;
  SHALE_RETURN_IF_ERROR(local_.ForEach([&](int local) {
    SHALE_ASSIGN_OR_RETURN(const absl::Span<char> staging, StagingOf(local_[local], kLeastFillStagingBytes));
    RankState::FillOptions of_rank = options;
    if (digest) of_rank.digest_of_frozen = &digests[local];
    return ranks_[local].Fill(read, of_rank, staging);
  }));
  if (digest) *options.digest_of_frozen = std::accumulate(digests.begin(), digests.end(), uint64_t{0});
  return absl::OkStatus();
}

absl::StatusOr<ParameterId> LocalState::Find(absl::string_view name) const {
  for (size_t id = 0; id < model_.parameters.size(); ++id) {
    if (model_.parameters[id].name == name) return static_cast<ParameterId>(id);
  }
  std::vector<std::string> names;
  for (const Parameter& parameter : model_.parameters) names.push_back(parameter.name);
  const std::string nearest = Nearest(name, names);
  return absl::NotFoundError(absl::StrCat("the model has no parameter ", name,
                                          nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?")));
}

absl::StatusOr<ParameterId> LocalState::Find(absl::string_view name, int64_t elements) const {
  SHALE_ASSIGN_OR_RETURN(const ParameterId id, Find(name));
  if (model_.parameters[id].elements() != elements) {
    return absl::InvalidArgumentError(absl::StrCat("parameter ", name, " has ", model_.parameters[id].elements(),
                                                   " elements, the caller gave ", elements));
  }
  return id;
}

absl::StatusOr<ParameterId> LocalState::FindElements(absl::string_view name, int64_t begin, int64_t count) const {
  SHALE_ASSIGN_OR_RETURN(const ParameterId id, Find(name));
  SHALE_RETURN_IF_ERROR(
      CheckElements(absl::StrCat("parameter ", name), model_.parameters[id].elements(), begin, count));
  return id;
}

absl::StatusOr<int> LocalState::FindState(absl::string_view name, ParameterId parameter) const {
  const Parameter& p = model_.parameters[parameter];
  if (p.frozen) return ranks_[0].CheckTrains(parameter);
  std::vector<absl::string_view> names;
  for (int i = 0; i < std::ssize(states()); ++i) {
    const SavedState& state = states()[i];
    if (StateElements(i, parameter) == 0) continue;
    if (state.name == name) return i;
    names.push_back(state.name);
  }
  return absl::NotFoundError(absl::StrCat(
      "the optimizer keeps no state ", name, " of ", p.name,
      names.empty() ? "; it keeps none at all" : absl::StrCat("; its states: ", absl::StrJoin(names, ", "))));
}

absl::Status LocalState::CheckStateElements(int state, ParameterId id, int64_t begin, int64_t count) const {
  const std::string& name = states()[state].name;
  if (states()[state].dtype == DType::kUInt8 || states()[state].block > 1) {
    return absl::FailedPreconditionError(absl::StrCat(
        "elements of state ", name,
        " cannot be read or written one by one: the optimizer keeps its moments in 8 bits, ", kQuantizedBlock,
        " to a scale; use optimizer.rule=ADAMW, or save a checkpoint and read codes and scales from it"));
  }
  const std::string what = absl::StrCat("state ", name, " of ", model_.parameters[id].name);
  return CheckElements(what, StateElements(state, id), begin, count);
}

absl::Status LocalState::Write(ParameterId id, int64_t begin, absl::Span<const float> values) {
  for (RankState& rank : ranks_) SHALE_RETURN_IF_ERROR(rank.Write(id, begin, values));
  return absl::OkStatus();
}

absl::Status LocalState::WriteState(int state, ParameterId id, int64_t begin, absl::Span<const float> values) {
  SHALE_RETURN_IF_ERROR(CheckStateElements(state, id, begin, std::ssize(values)));
  for (RankState& rank : ranks_) SHALE_RETURN_IF_ERROR(rank.WriteState(state, id, begin, values));
  return absl::OkStatus();
}

absl::Status LocalState::Read(ParameterId id, int64_t begin, absl::Span<float> values) const {
  return ReadShards(id, std::ssize(values),
                    [&](const RankState& rank) { return rank.Read(RankState::Values::kWeights, id, begin, values); });
}

absl::Status LocalState::ReadGradient(ParameterId id, int64_t begin, absl::Span<float> values) const {
  return ReadShards(id, std::ssize(values),
                    [&](const RankState& rank) { return rank.Read(RankState::Values::kGradient, id, begin, values); });
}

absl::Status LocalState::ReadState(int state, ParameterId id, int64_t begin, absl::Span<float> values) const {
  SHALE_RETURN_IF_ERROR(CheckStateElements(state, id, begin, std::ssize(values)));
  return ReadShards(id, std::ssize(values),
                    [&](const RankState& rank) { return rank.ReadState(state, id, begin, values); });
}

absl::Status LocalState::ReadShards(ParameterId id, int64_t count,
                                    absl::FunctionRef<absl::StatusOr<int64_t>(const RankState&)> read) const {
  int64_t missing = count;
  std::set<int> shards;  // The shards that have been read. Replicas of a shard hold the same values, so one is enough.
  for (int local = 0; local < size() && missing > 0; ++local) {  // One rank is enough if it holds all.
    if (!shards.insert(local_.mesh().index(local_.number(local), MeshAxis::kShard)).second) continue;
    SHALE_ASSIGN_OR_RETURN(const int64_t found, read(ranks_[local]));
    missing -= found;
  }
  if (missing <= 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("ranks of other processes hold ", missing, " of the ", count,
                                                    " elements of ", model_.parameters[id].name,
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
