#include "engine/run/train/state_check.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/check.h"
#include "kernels/step_scalars.h"

namespace shale {
namespace {

constexpr int kNumbers = 8;  // Of a rank, in a message.
constexpr size_t kMostReplicasListed = 8;

uint64_t BitsOf(double value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

double FromBits(uint64_t bits) {
  double value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

std::string List(const std::vector<int64_t>& ranks) {
  const size_t listed = std::min(ranks.size(), kMostReplicasListed);
  const std::string more = ranks.size() > listed ? absl::StrCat(" and ", ranks.size() - listed, " more") : "";
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ",
                      absl::StrJoin(ranks.begin(), ranks.begin() + listed, ", "), more);
}

constexpr absl::string_view kAdvice =
    "the job has diverged without an error. Look at memory, processor and network there, and resume from a checkpoint "
    "before it";
constexpr absl::string_view kState = "weights or optimizer state";

// Compares one value of ranks that should have it alike. `when` is "after step 4" or the like.
absl::Status Compare(absl::string_view what, absl::string_view when, absl::Span<const RankDigest> ranks,
                     const std::function<uint64_t(const RankDigest&)>& value) {
  std::map<uint64_t, std::vector<int64_t>> by_value;
  for (const RankDigest& rank : ranks) by_value[value(rank)].push_back(rank.rank);
  if (by_value.size() <= 1) return absl::OkStatus();
  std::vector<std::vector<int64_t>> parties;
  for (const auto& [bits, party] : by_value) parties.push_back(party);
  // The largest party comes first; of equal ones, that of the lowest rank.
  std::sort(parties.begin(), parties.end(),
            [](const auto& a, const auto& b) { return a.size() != b.size() ? a.size() > b.size() : a[0] < b[0]; });
  std::string who;
  if (parties[0].size() > parties[1].size()) {
    std::vector<int64_t> odd;
    for (size_t i = 1; i < parties.size(); ++i) odd.insert(odd.end(), parties[i].begin(), parties[i].end());
    std::sort(odd.begin(), odd.end());
    who = absl::StrCat(List(odd), odd.size() == 1 ? " differs from " : " differ from ", List(parties[0]));
  } else {
    std::vector<std::string> sides;
    for (const std::vector<int64_t>& party : parties) sides.push_back(List(party));
    who = absl::StrCat(absl::StrJoin(sides, " and "), " differ");
  }
  return absl::DataLossError(
      absl::StrCat(when, " ", who, " in ", what, ", of which they should have the same bits: ", kAdvice));
}

// Compares what ranks hold everywhere, and what those of a column hold. `digest` returns that of a rank.
absl::Status CompareStates(const Mesh& mesh, absl::string_view when, absl::Span<const RankDigest> ranks,
                           const std::function<StateDigest(const RankDigest&)>& digest) {
  absl::Status status = Compare(kState, when, ranks, [&](const auto& rank) { return digest(rank).everywhere; });
  for (int64_t column = 0; column < mesh.shard; ++column) {
    std::vector<RankDigest> replicas;
    for (const RankDigest& rank : ranks) {
      if (rank.rank % mesh.shard == column) replicas.push_back(rank);
    }
    status.Update(Compare(kState, when, replicas, [&](const auto& rank) { return digest(rank).column; }));
  }
  return status;
}

// Returns DataLoss if a state changed between the update before `step` and that of `step`.
absl::Status CheckUnchanged(int64_t step, absl::Span<const RankDigest> ranks) {
  std::vector<int64_t> changed;
  for (const RankDigest& rank : ranks) {
    if (rank.changed) changed.push_back(rank.rank);
  }
  if (changed.empty()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(kState, " of ", List(changed), " changed before the update of step ", step,
                                          ", and nothing but an update changes them: ", kAdvice));
}

}  // namespace

std::string SerializeDigests(absl::Span<const RankDigest> digests) {
  std::string message;
  for (const RankDigest& digest : digests) {
    absl::StrAppend(&message, digest.rank, " ", digest.state.everywhere, " ", digest.state.column, " ",
                    BitsOf(digest.loss), " ", BitsOf(digest.squared_norm), " ", digest.before ? 1 + digest.changed : 0,
                    " ", digest.before.value_or(StateDigest()).everywhere, " ",
                    digest.before.value_or(StateDigest()).column, " ");
  }
  return message;
}

absl::Status ParseDigests(absl::string_view message, std::vector<RankDigest>& digests) {
  std::vector<uint64_t> numbers;
  for (const absl::string_view word : absl::StrSplit(message, ' ', absl::SkipEmpty())) {
    if (!absl::SimpleAtoi(word, &numbers.emplace_back())) return absl::InternalError("a process sent no digests");
  }
  if (numbers.size() % kNumbers != 0) return absl::InternalError("a process sent no digests");
  for (size_t i = 0; i < numbers.size(); i += kNumbers) {
    digests.push_back({.rank = static_cast<int64_t>(numbers[i]),
                       .state = {.everywhere = static_cast<uint32_t>(numbers[i + 1]),
                                 .column = static_cast<uint32_t>(numbers[i + 2])},
                       .loss = FromBits(numbers[i + 3]),
                       .squared_norm = FromBits(numbers[i + 4])});
    if (numbers[i + 5] == 0) continue;
    digests.back().before = {.everywhere = static_cast<uint32_t>(numbers[i + 6]),
                             .column = static_cast<uint32_t>(numbers[i + 7])};
    digests.back().changed = numbers[i + 5] > 1;
  }
  return absl::OkStatus();
}

absl::Status CheckReplicas(const Mesh& mesh, int64_t step, std::vector<RankDigest> ranks) {
  std::sort(ranks.begin(), ranks.end(), [](const RankDigest& a, const RankDigest& b) { return a.rank < b.rank; });
  absl::Status status = CheckUnchanged(step, ranks);
  if (std::all_of(ranks.begin(), ranks.end(), [](const RankDigest& rank) { return rank.before.has_value(); })) {
    status.Update(CompareStates(mesh, absl::StrCat("before the update of step ", step), ranks,
                                [](const auto& rank) { return *rank.before; }));
  }
  const std::string after = absl::StrCat("after step ", step);
  status.Update(Compare("the reduced loss", after, ranks, [](const auto& rank) { return BitsOf(rank.loss); }));
  status.Update(Compare("the reduced norm of the gradient", after, ranks,
                        [](const auto& rank) { return BitsOf(rank.squared_norm); }));
  status.Update(CompareStates(mesh, after, ranks, [](const auto& rank) { return rank.state; }));
  return status;
}

absl::Status StateCheck::RunStep(int64_t step, const std::vector<StepInputs>& inputs) {
  before_update_.clear();
  if (!IsChecked(step)) return train_.Run(inputs);
  if (left_by_update_.empty()) SHALE_RETURN_IF_ERROR(DigestState(Digested::kAll, left_by_update_));
  if (first_update_ < 0) first_update_ = FirstWriteOfState(plan_.train.step.state, plan_.train.step.program);
  before_update_.resize(ranks_.size());
  return train_.Run(inputs, first_update_, [&](int local) -> absl::Status {
    SHALE_ASSIGN_OR_RETURN(before_update_[local],
                           DigestOfState(Digested::kAll, plan_.train.step.state, plan_.train.memory, ranks_[local]));
    return absl::OkStatus();
  });
}

absl::Status StateCheck::DigestState(Digested what, std::vector<StateDigest>& digests) {
  digests.resize(ranks_.size());
  return ranks_.ForEach([&](int local) -> absl::Status {
    SHALE_ASSIGN_OR_RETURN(digests[local],
                           DigestOfState(what, plan_.train.step.state, plan_.train.memory, ranks_[local]));
    return absl::OkStatus();
  });
}

absl::Status StateCheck::Compare(int64_t step, bool always) {
  const bool next = IsChecked(step + 1);
  if (every_steps_ == 0 || !(always || IsChecked(step) || next)) return absl::OkStatus();
  const std::vector<StateDigest> left = std::move(left_by_update_);
  std::vector<StateDigest> after;
  SHALE_RETURN_IF_ERROR(
      AgreeOnStatus(control_, ControlChannel::kSteps, DigestState(next ? Digested::kAll : Digested::kReplicas, after)));
  std::vector<RankDigest> mine, all;
  for (int local = 0; local < ranks_.size(); ++local) {
    const StepOutputs& out = train_.outputs(local);
    RankDigest& digest = mine.emplace_back(RankDigest{.rank = ranks_.number(local),
                                                      .state = after[local],
                                                      .loss = out.totals[kTotalLoss],
                                                      .squared_norm = out.totals[kTotalSquaredNorm]});
    if (before_update_.empty()) continue;
    digest.before = before_update_[local];
    digest.changed = left[local] != before_update_[local];
  }
  left_by_update_ = next ? std::move(after) : std::vector<StateDigest>();
  SHALE_ASSIGN_OR_RETURN(const std::vector<std::string> messages,
                         control_.Gather(ControlChannel::kSteps, SerializeDigests(mine)));
  for (const std::string& message : messages) SHALE_RETURN_IF_ERROR(ParseDigests(message, all));
  const absl::Status equal = CheckReplicas(plan_.options.mesh, step, std::move(all));
  return equal.ok() || control_.processes() == 1 ? equal : Agreed(equal);
}

}  // namespace shale
