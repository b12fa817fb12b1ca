#include "engine/train/state_check.h"

#include <string>
#include <utility>

#include "engine/train/replica_check.h"
#include "kernels/check.h"
#include "kernels/step_scalars.h"

namespace shale {

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
