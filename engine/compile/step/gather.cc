#include "engine/compile/step/gather.h"

#include "absl/strings/str_cat.h"
#include "engine/compile/step/writer.h"
#include "kernels/ops/flat.h"
#include "kernels/ops/quantized.h"

namespace shale {

void Gatherer::Gather(const GatherUse& use) {
  full_.assign(full_.size(), Tensor());
  for (GroupId group : use.groups) full_[group] = Gathered(use, group);
  for (GroupId group : use.groups) {
    if (state_.groups[group].stored != FrozenWeights::kAsComputed) full_[group] = Widened(use, group, full_[group]);
  }
}

Tensor Gatherer::Gathered(const GatherUse& use, GroupId group) {
  const GroupState& g = state_.groups[group];
  if (g.full_weight.present()) return g.full_weight;
  if (kept_[group].present()) return kept_[group];
  const Tensor full =
      writer_.AddTensor(absl::StrCat(model_.groups[group].name, ".gathered"), BufferCategory::kGatheredParameters,
                        Tensor::Contiguous(g.own_weight.dtype, {g.own_weight.elements() * g.layout().shards()}));
  writer_.Emit({.stream = StreamId::kGather, .phase = use.phase, .unit = use.unit},
               Collective{.kind = CollectiveKind::kAllGather, .local = g.own_weight, .full = full});
  if (!options_.reshard_after_forward) kept_[group] = full;
  return full;
}

Tensor Gatherer::Widened(const GatherUse& use, GroupId group, const Tensor& stored) {
  const GroupState& g = state_.groups[group];
  const int64_t shards = g.layout().shards();
  const Tensor wide =
      writer_.AddTensor(absl::StrCat(model_.groups[group].name, ".widened"), BufferCategory::kWidenedParameters,
                        Tensor::Contiguous(model_.compute_dtype, {g.placement.elements(Part::kFull)}));
  const EmitContext context{.phase = use.phase, .unit = use.unit};
  if (g.stored == FrozenWeights::kNf4) {
    writer_.Emit(context, Op(Nf4Dequantize{.stored_RP = stored.Reshape({shards, stored.elements() / shards}),
                                           .out_RN = wide.Reshape({shards, g.layout().shard_elements()})}));
  } else {
    writer_.Emit(context, Op(Copy{.from = stored, .to = wide}));
  }
  return wide;
}

const Tensor& Gatherer::Full(GroupId group) const {
  SHALE_CHECK(full_[group].present()) << model_.groups[group].name << " was not gathered for this visit";
  return full_[group];
}

}  // namespace shale
