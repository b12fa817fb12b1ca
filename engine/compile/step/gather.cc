#include "engine/compile/step/gather.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/compile/step/writer.h"
#include "kernels/ops/flat.h"
#include "kernels/ops/quantized.h"

namespace shale {

Gatherer::Gatherer(const ModelGraph& model, const StepOptions& options, const JobState& state,
                   std::vector<GatherUse> uses, ProgramWriter& writer)
    : model_(model),
      options_(options),
      state_(state),
      writer_(writer),
      uses_(std::move(uses)),
      gathered_(uses_.size()),
      kept_(model.groups.size()),
      fetched_(uses_.size()),
      fetches_no_more_(model.groups.size(), false) {}

void Gatherer::Prepare(int index) {
  const int last = static_cast<int>(std::min<int64_t>(index + options_.prefetch, std::ssize(uses_) - 1));
  for (; issued_ <= last; ++issued_) {
    for (; copied_ < std::min<int64_t>(issued_ + 2, std::ssize(uses_)); ++copied_) Fetch(copied_);
    Issue(issued_);
  }
  Widen(index);
  prepared_ = index + 1;
}

void Gatherer::Widen(int index) {
  const GatherUse& use = uses_[index];
  for (size_t i = 0; i < use.groups.size(); ++i) {
    const GroupId group = use.groups[i];
    const GroupState& g = state_.groups[group];
    if (g.stored == FrozenWeights::kAsComputed) continue;
    const int64_t shards = g.layout().shards();
    const Tensor stored = gathered_[index][i];
    const Tensor wide = gathered_[index][i] =
        writer_.AddTensor(absl::StrCat(model_.groups[group].name, ".widened"), BufferCategory::kWidenedParameters,
                          Tensor::Contiguous(model_.compute_dtype, {g.placement.elements(Part::kFull)}));
    const EmitContext context{.phase = use.phase, .unit = use.unit};
    if (g.stored == FrozenWeights::kNf4) {
      writer_.Emit(context, Op(Nf4Dequantize{.stored_RP = stored.Reshape({shards, stored.elements() / shards}),
                                             .out_RN = wide.Reshape({shards, g.layout().shard_elements()})}));
    } else {
      writer_.Emit(context, Op(Copy{.from = stored, .to = wide}));
    }
  }
}

void Gatherer::Fetch(int index) {
  const GatherUse& use = uses_[index];
  for (GroupId group : use.groups) {
    const GroupState& g = state_.groups[group];
    Tensor& copy = fetched_[index].emplace_back();
    if (!g.placement.placement().gathers_for_use() || !writer_.IsOnHost(g.own_weight)) continue;
    if (fetches_no_more_[group]) continue;
    copy = writer_.EmitFetch({.phase = use.phase, .unit = use.unit}, g.own_weight);
    fetches_no_more_[group] = !options_.reshard_after_forward;
  }
}

void Gatherer::Issue(int index) {
  const GatherUse& use = uses_[index];
  const EmitContext context{.stream = StreamId::kGather, .phase = use.phase, .unit = use.unit};
  for (size_t i = 0; i < use.groups.size(); ++i) {
    const GroupId group = use.groups[i];
    const GroupState& g = state_.groups[group];
    Tensor& full = gathered_[index].emplace_back();
    if (g.full_weight.present()) {
      full = g.full_weight;
      continue;
    }
    if (kept_[group].present()) {
      full = kept_[group];
      continue;
    }
    full = writer_.AddTensor(absl::StrCat(model_.groups[group].name, ".gathered"), BufferCategory::kGatheredParameters,
                             Tensor::Contiguous(g.own_weight.dtype, {g.own_weight.elements() * g.layout().shards()}));
    if (g.placement.placement().gathers_for_use()) {
      const Tensor& copy = fetched_[index][i];
      writer_.Emit(
          context,
          Collective{.kind = CollectiveKind::kAllGather, .local = copy.present() ? copy : g.own_weight, .full = full});
    } else {
      writer_.EmitFetch(context, g.own_weight, full);
    }
    if (!options_.reshard_after_forward) kept_[group] = full;
  }
}

const Tensor& Gatherer::Full(int index, GroupId group) const {
  const std::vector<GroupId>& groups = uses_[index].groups;
  const auto at = std::find(groups.begin(), groups.end(), group);
  SHALE_CHECK(index < prepared_ && at != groups.end())
      << model_.groups[group].name << " was not gathered for use " << index;
  return gathered_[index][at - groups.begin()];
}

}  // namespace shale
