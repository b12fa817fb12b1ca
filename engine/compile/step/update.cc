#include "engine/compile/step/update.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/compile/step/factored_update.h"
#include "kernels/ops/flat.h"
#include "kernels/ops/scalars.h"
#include "kernels/ops/update.h"
#include "kernels/step_scalars.h"

namespace shale {
namespace {

EmitContext OnceAStep(StreamId stream, Phase phase) { return {.stream = stream, .phase = phase, .once_a_step = true}; }

}  // namespace

void EmitAllReduce(const Mesh& mesh, const EmitContext& context, const Tensor& data, ProgramWriter& writer) {
  if (mesh.ranks() == 1) return;
  writer.Emit(context, Collective{.kind = CollectiveKind::kAllReduceSum, .axis = MeshAxis::kAll, .full = data});
}

std::vector<std::vector<GroupId>> ScheduleUpdates(const std::vector<Visit>& visits,
                                                  const std::vector<std::vector<GroupId>>& completed, UpdateTime time,
                                                  int64_t ranks) {
  std::vector<std::vector<GroupId>> updated(visits.size() + 1);
  std::vector<GroupId> waiting;
  for (size_t v = 0; v < visits.size(); ++v) {
    const bool updates = time == UpdateTime::kInBackward && HasBackward(visits[v].work);
    if (updates && ranks > 1) updated[v] = std::exchange(waiting, {});
    waiting.insert(waiting.end(), completed[v].begin(), completed[v].end());
    if (updates && ranks == 1) updated[v] = std::exchange(waiting, {});
  }
  if (time == UpdateTime::kAfterBackward) std::sort(waiting.begin(), waiting.end());
  updated.back() = std::move(waiting);
  return updated;
}

Updater::Updater(const StepOptions& options, const JobState& state, const Tensor& hyper, const TargetCounts& counts,
                 ProgramWriter& writer)
    : options_(options),
      state_(state),
      hyper_(hyper),
      counts_(counts),
      writer_(writer),
      by_group_(options.update == UpdateTime::kInBackward || options.clipping != Clipping::kGlobal),
      in_backward_(options.update == UpdateTime::kInBackward),
      trained_(state.Trained()) {
  if (!by_group_) return;
  SHALE_CHECK(!options.loss_scaling) << "a group cannot be skipped alone";
  group_totals_ = writer.AddTensor("group_totals", BufferCategory::kData,
                                   Tensor::Contiguous(DType::kFloat64, {std::ssize(trained_), kTotalSize}));
}

void Updater::EmitTotals(const std::vector<GroupId>& groups) {
  for (GroupId group : groups) {
    EmitGroupTotals(group);
    SumOverRanks(TotalsOf(group), Phase::kUpdate);
  }
}

void Updater::EmitUpdates(const std::vector<GroupId>& groups) {
  for (GroupId group : groups) {
    // Only the last group counts the update, so that all groups use the same update number.
    const bool counts = ++groups_updated_ == std::ssize(trained_);
    EmitUpdate(group, EmitPrepare(TotalsOf(group), counts, OptimizerOf(group)));
  }
}

void Updater::Finish(const std::vector<GroupId>& groups) {
  if (!by_group_) return UpdateAllByOneNorm(groups);
  if (in_backward_) {
    EmitTotals(groups);
  } else {
    for (GroupId group : groups) EmitGroupTotals(group);
    if (has_replicas()) {
      for (GroupId group : groups) CombineOverShards(TotalsOf(group), Phase::kEnd);
    } else {
      SumOverRanks(group_totals_, Phase::kEnd);
    }
  }
  EmitUpdates(groups);
  Compute(Op(CombineTotals{.groups_G3 = group_totals_, .totals_3 = state_.totals}));
  if (!state_.previous_norm.present()) return;
  Compute(Op(RecordNorm{.valid_tokens_1 = counts_.valid_tokens,
                        .totals_3 = state_.totals,
                        .norm_1 = state_.previous_norm,
                        .weight_total_1 = counts_.weight_total}));
}

void Updater::UpdateAllByOneNorm(const std::vector<GroupId>& groups) {
  SumLoss(Phase::kEnd);
  for (GroupId group : groups) {
    EmitSquares(group, state_.totals.Slice(0, kTotalSquaredNorm, 1), /*accumulate=*/group != groups[0]);
  }
  Compute(Op(FlagNonFinite{.totals_3 = state_.totals, .loss_scale_3 = state_.loss_scale}));
  SumOverRanks(state_.totals, Phase::kEnd);
  // Groups that one optimizer updates share what is prepared. The last one counts, so all have the same number.
  std::map<const Optimizer*, Prepared> prepared;
  std::vector<const Optimizer*> optimizers;
  for (GroupId group : groups) {
    const Optimizer* const optimizer = &OptimizerOf(group);
    if (prepared.try_emplace(optimizer).second) optimizers.push_back(optimizer);
  }
  for (const Optimizer* optimizer : optimizers) {
    prepared[optimizer] = EmitPrepare(state_.totals, /*counts=*/optimizer == optimizers.back(), *optimizer);
  }
  for (GroupId group : groups) EmitUpdate(group, prepared[&OptimizerOf(group)]);
}

void Updater::Compute(Action action) { writer_.Emit(OnceAStep(StreamId::kCompute, Phase::kUpdate), std::move(action)); }

Tensor Updater::TotalsOf(GroupId group) const {
  Tensor row = Tensor::Contiguous(DType::kFloat64, {kTotalSize});
  row.where = group_totals_.where;
  const int64_t index = std::lower_bound(trained_.begin(), trained_.end(), group) - trained_.begin();
  row.where.offset_bytes += index * row.extent_bytes();
  return row;
}

void Updater::EmitSquares(GroupId group, const Tensor& total, bool accumulate) {
  const GroupState& g = state_.groups[group];
  const Placement& placement = g.placement.placement();
  // Each rank sums the squares of its shard, even if it holds the full gradient.
  const bool full = placement.state == Part::kFull && placement.mesh.shard > 1;
  Compute(Op(SumSquares{
      .x_N = full ? g.placement.ShardOf(g.own_gradient) : g.own_gradient, .total_1 = total, .accumulate = accumulate}));
}

void Updater::SumLoss(Phase phase) {
  if (!has_replicas() || std::exchange(loss_is_summed_, true)) return;
  EmitAllReduce(options_.mesh, OnceAStep(StreamId::kReduce, phase), state_.totals.Slice(0, kTotalLoss, 1), writer_);
}

void Updater::CombineOverShards(const Tensor& totals, Phase phase) {
  const int64_t shards = options_.mesh.shard;
  if (shards == 1) return;  // Each rank has summed the squares of all elements.
  const Tensor by_shard = writer_.AddTensor("totals_by_shard", BufferCategory::kData,
                                            Tensor::Contiguous(DType::kFloat64, {shards, kTotalSize}));
  writer_.Emit(OnceAStep(StreamId::kReduce, phase),
               Collective{.kind = CollectiveKind::kAllGather, .local = totals, .full = by_shard});
  writer_.Emit(OnceAStep(StreamId::kCompute, phase),
               Op(CombineTotals{.groups_G3 = by_shard, .totals_3 = totals, .keeps_loss = state_.loss_scale.present()}));
}

void Updater::SumOverRanks(const Tensor& totals, Phase phase) {
  if (has_replicas()) return CombineOverShards(totals, phase);
  EmitAllReduce(options_.mesh, OnceAStep(StreamId::kReduce, phase), totals, writer_);
}

void Updater::EmitGroupTotals(GroupId group) {
  SumLoss(Phase::kUpdate);
  const Tensor totals = TotalsOf(group);
  Compute(Op(Copy{.from = state_.totals, .to = totals}));  // For the loss.
  EmitSquares(group, totals.Slice(0, kTotalSquaredNorm, 1), /*accumulate=*/false);
  Compute(Op(FlagNonFinite{.totals_3 = totals}));
}

Updater::Prepared Updater::EmitPrepare(const Tensor& totals, bool counts, const Optimizer& optimizer) {
  const Tensor update =
      writer_.AddTensor("update", BufferCategory::kData, Tensor::Contiguous(DType::kFloat32, {kUpdateSize}));
  const bool bf16_alone =
      options_.master == MasterWeights::kNone && state_.groups[trained_[0]].own_weight.dtype == DType::kBFloat16;
  Tensor number;
  if (bf16_alone || HasBFloat16States(optimizer.rule) || optimizer.factored) {
    number = writer_.AddTensor("update_number", BufferCategory::kData, Tensor::Contiguous(DType::kInt64, {1}));
  }
  const LossScaling scaling = options_.loss_scaling.value_or(LossScaling());
  Compute(Op(PrepareUpdate{.hyper_2 = hyper_,
                           .valid_tokens_1 = counts_.valid_tokens,
                           .totals_3 = totals,
                           .update_count_1 = state_.update_count,
                           .update_5 = update,
                           .number_1 = number,
                           .previous_norm_1 = state_.previous_norm,
                           .weight_total_1 = counts_.weight_total,
                           .loss_scale_3 = state_.loss_scale,
                           .growth_factor = scaling.growth_factor,
                           .backoff_factor = scaling.backoff_factor,
                           .growth_interval = scaling.growth_interval,
                           .beta1 = optimizer.beta1,
                           .beta2 = optimizer.beta2,
                           .counts = counts,
                           .learning_rate_factor = static_cast<float>(optimizer.learning_rate_factor)}));
  return {update, number};
}

Tensor Updater::WidenedGradient(GroupId group) {
  const Tensor& own = state_.groups[group].own_gradient;
  if (own.dtype == DType::kFloat32) return own;
  const std::string name = absl::StrCat(writer_.program().buffers[own.where.symbol].name, ".widened");
  const Tensor widened =
      writer_.AddTensor(name, BufferCategory::kGradientShards, Tensor::Contiguous(DType::kFloat32, {own.elements()}));
  Compute(Op(Copy{.from = own, .to = widened}));
  return widened;
}

void Updater::EmitUpdate(GroupId group, const Prepared& prepared) {
  const GroupState& g = state_.groups[group];
  Op op = Update{.update_5 = prepared.update,
                 .gradient_P = WidenedGradient(group),
                 .weight_P = g.own_weight,
                 .master_P = g.master,
                 .low_P = g.low,
                 .rule = OptimizerOf(group).rule,
                 .decayed = std::make_shared<const std::vector<ElementRange>>(g.decayed),
                 .shard_stride = g.placement.owned_stride(),
                 .number_1 = prepared.number,
                 .seed = options_.seed,
                 .group = group};
  const absl::Span<const UpdateState> states = StatesOf(op.As<Update>()->rule);
  for (size_t i = 0; i < states.size(); ++i) op.As<Update>()->states[i] = g.states[state_.Find(states[i])];
  if (g.factored != nullptr) {
    const FactoredDirection factored =
        EmitFactoredDirection(*OptimizerOf(group).factored, g, *op.As<Update>(), prepared.number, writer_);
    op.As<Update>()->gradient_P = factored.direction_P;
    op.As<Update>()->update_5 = factored.step_5;
    if (!op.As<Update>()->rounds_stochastically()) op.As<Update>()->number_1 = {};
  }
  Compute(std::move(op));
  if (!g.placement.placement().gathers_after_update()) return;
  writer_.Emit(OnceAStep(StreamId::kGather, Phase::kUpdate),
               Collective{.kind = CollectiveKind::kAllGather, .local = g.own_weight, .full = g.full_weight});
}

}  // namespace shale
