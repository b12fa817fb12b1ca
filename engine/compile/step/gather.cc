#include "engine/compile/step/gather.h"

#include "absl/strings/str_cat.h"
#include "engine/compile/graph/storage.h"
#include "engine/compile/step/writer.h"

namespace shale {

void Gatherer::Gather(const Visit& visit, const std::vector<GroupId>& groups) {
  full_.assign(full_.size(), Tensor());
  for (GroupId group : groups) full_[group] = Gathered(visit, group);
  for (GroupId group : groups) full_[group] = Widen(visit, group, full_[group]);
}

Tensor Gatherer::Gathered(const Visit& visit, GroupId group) {
  const GroupState& g = state_.groups[group];
  if (g.full_weight.present()) return g.full_weight;
  if (kept_[group].present()) return kept_[group];
  const Tensor full =
      writer_.AddTensor(absl::StrCat(model_.groups[group].name, ".gathered"), BufferCategory::kGatheredParameters,
                        Tensor::Contiguous(g.own_weight.dtype, {g.own_weight.elements() * g.layout().shards()}));
  writer_.Emit({.stream = StreamId::kGather, .phase = PhaseOf(visit.work), .unit = visit.unit},
               Collective{.kind = CollectiveKind::kAllGather, .local = g.own_weight, .full = full});
  if (!options_.reshard_after_forward) kept_[group] = full;
  return full;
}

Tensor Gatherer::Widen(const Visit& visit, GroupId group, const Tensor& stored) {
  const ParameterGroup& parameters = model_.groups[group];
  const auto widen = RowOf(parameters.storage).widen;
  if (widen == nullptr) return stored;
  const GroupState& g = state_.groups[group];
  const Tensor used = writer_.AddTensor(absl::StrCat(parameters.name, ".widened"), BufferCategory::kWidenedParameters,
                                        Tensor::Contiguous(parameters.dtype, {g.placement.elements(Part::kFull)}));
  writer_.Emit({.phase = PhaseOf(visit.work), .unit = visit.unit}, widen(stored, used, g.layout().shards()));
  return used;
}

const Tensor& Gatherer::Full(GroupId group) const {
  SHALE_CHECK(full_[group].present()) << model_.groups[group].name << " was not gathered for this visit";
  return full_[group];
}

}  // namespace shale
