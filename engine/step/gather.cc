#include "engine/step/gather.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/step/writer.h"

namespace shale {

Gatherer::Gatherer(const ModelGraph& model, const StepOptions& options, const JobState& state,
                   std::vector<GatherUse> uses, ProgramWriter& writer)
    : model_(model),
      options_(options),
      state_(state),
      writer_(writer),
      uses_(std::move(uses)),
      gathered_(uses_.size()),
      kept_(model.groups.size()) {}

void Gatherer::Prepare(int index) {
  const int last = static_cast<int>(std::min<int64_t>(index + options_.prefetch, std::ssize(uses_) - 1));
  for (; issued_ <= last; ++issued_) Issue(issued_);
}

void Gatherer::Issue(int index) {
  const GatherUse& use = uses_[index];
  for (GroupId group : use.groups) {
    const GroupState& g = state_.groups[group];
    Tensor& full = gathered_[index].emplace_back();
    if (!g.placement.placement().gathers_for_use()) {
      full = g.full_weight;
      continue;
    }
    if (kept_[group].present()) {
      full = kept_[group];
      continue;
    }
    full = writer_.AddTensor(absl::StrCat(model_.groups[group].name, ".gathered"), BufferCategory::kGatheredParameters,
                             Tensor::Contiguous(model_.compute_dtype, {g.placement.elements(Part::kFull)}));
    writer_.Emit({.stream = StreamId::kGather, .phase = use.phase, .unit = use.unit},
                 Collective{.kind = CollectiveKind::kAllGather, .local = g.own_weight, .full = full});
    if (!options_.reshard_after_forward) kept_[group] = full;
  }
}

const Tensor& Gatherer::Full(int index, GroupId group) const {
  const std::vector<GroupId>& groups = uses_[index].groups;
  const auto at = std::find(groups.begin(), groups.end(), group);
  SHALE_CHECK(index < issued_ && at != groups.end())
      << model_.groups[group].name << " was not gathered for use " << index;
  return gathered_[index][at - groups.begin()];
}

}  // namespace shale
