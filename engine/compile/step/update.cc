#include "engine/compile/step/update.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/ops/flat.h"
#include "kernels/ops/scalars.h"
#include "kernels/ops/update.h"
#include "kernels/step_scalars.h"

namespace shale {
namespace {

// Returns the groups that are clipped together: first those that all share the largest norm of the step.
std::vector<std::vector<GroupId>> RowsByClipping(const StepOptions& options, const JobState& state) {
  std::map<int, std::vector<GroupId>> rows;  // By the optimizer's number, or -1.
  for (const GroupId group : state.Trained()) {
    const int optimizer = state.groups[group].optimizer_group;
    rows[options.OptimizerOf(optimizer).max_gradient_norm ? optimizer : -1].push_back(group);
  }
  std::vector<std::vector<GroupId>> lists;
  for (auto& [optimizer, groups] : rows) lists.push_back(std::move(groups));
  return lists;
}

}  // namespace

void EmitAllReduce(const Mesh& mesh, const EmitContext& context, const Tensor& data, ProgramWriter& writer) {
  if (mesh.ranks() == 1) return;
  writer.Emit(context, Collective{.kind = CollectiveKind::kAllReduceSum, .axis = MeshAxis::kAll, .full = data});
}

Updater::Updater(const StepOptions& options, const JobState& state, const DataOfStep& data, ProgramWriter& writer)
    : options_(options),
      state_(state),
      hyper_(data.at(StepItem::kHyper)),
      valid_tokens_(data.at(StepItem::kValidTokens)),
      weight_total_(data.contains(StepItem::kWeightTotal) ? data.at(StepItem::kWeightTotal) : Tensor()),
      writer_(writer),
      by_group_(options.update == UpdateTime::kInBackward || options.clipping != Clipping::kGlobal),
      trained_(state.Trained()) {
  SHALE_CHECK(!by_group_ || !options.loss_scaling) << "a group cannot be skipped alone";
  if (by_group_) {
    for (const GroupId group : trained_) rows_.push_back({group});
  } else if (options.clips_groups()) {
    rows_ = RowsByClipping(options, state);
  }
  if (rows_.empty()) return;
  group_totals_ = writer.AddTensor("group_totals", BufferCategory::kData,
                                   Tensor::Contiguous(DType::kFloat64, {std::ssize(rows_), kTotalSize}));
}

void Updater::Emit() {
  if (!by_group_) return UpdateAllTogether();
  EmitRows();
  for (const GroupId group : trained_) {
    // Only the last group counts the update, so that all groups use the same update number.
    EmitUpdate(group, EmitPrepare(TotalsOf(group), /*counts=*/group == trained_.back(), OptimizerOf(group)));
  }
  CombineRows();
  if (!state_.previous_norm.present()) return;
  Compute(Op(RecordNorm{.valid_tokens_1 = valid_tokens_,
                        .totals_3 = state_.totals,
                        .norm_1 = state_.previous_norm,
                        .weight_total_1 = weight_total_}));
}

void Updater::EmitRows() {
  const bool in_backward = options_.update == UpdateTime::kInBackward;
  for (size_t row = 0; row < rows_.size(); ++row) {
    EmitRow(Row(row), rows_[row]);
    if (in_backward) SumOverRanks(Row(row), Phase::kUpdate);
  }
  if (in_backward) return;
  if (!has_replicas()) return SumOverRanks(group_totals_, Phase::kEnd);
  for (size_t row = 0; row < rows_.size(); ++row) CombineOverShards(Row(row), Phase::kEnd);
}

void Updater::CombineRows() {
  Compute(Op(
      CombineTotals{.groups_G3 = group_totals_, .totals_3 = state_.totals, .keeps_loss = state_.loss_scale.present()}));
}

void Updater::EmitTotalsOfStep() {
  if (rows_.empty()) {
    SumLoss(Phase::kEnd);
    for (const GroupId group : trained_) {
      EmitSquares(group, state_.totals.Slice(0, kTotalSquaredNorm, 1), /*accumulate=*/group != trained_[0]);
    }
    Compute(Op(FlagNonFinite{.totals_3 = state_.totals, .loss_scale_3 = state_.loss_scale}));
    return SumOverRanks(state_.totals, Phase::kEnd);
  }
  EmitRows();
  CombineRows();
  for (size_t row = 0; row < rows_.size(); ++row) {
    Compute(Op(Copy{.from = state_.totals.Slice(0, kTotalNonFinite, 1), .to = Row(row).Slice(0, kTotalNonFinite, 1)}));
  }
}

void Updater::UpdateAllTogether() {
  EmitTotalsOfStep();
  // Groups that one optimizer updates share what is prepared. The last one counts, so all have the same number.
  std::map<const Optimizer*, Update> prepared;
  std::vector<GroupId> firsts;  // Of each optimizer.
  for (const GroupId group : trained_) {
    if (prepared.try_emplace(&OptimizerOf(group)).second) firsts.push_back(group);
  }
  for (const GroupId group : firsts) {
    prepared[&OptimizerOf(group)] = EmitPrepare(TotalsOf(group), /*counts=*/group == firsts.back(), OptimizerOf(group));
  }
  for (const GroupId group : trained_) EmitUpdate(group, prepared[&OptimizerOf(group)]);
}

void Updater::Compute(Action action) {
  writer_.Emit({.stream = StreamId::kCompute, .phase = Phase::kUpdate}, std::move(action));
}

Tensor Updater::Row(size_t row) const {
  Tensor totals = Tensor::Contiguous(DType::kFloat64, {kTotalSize});
  totals.where = group_totals_.where;
  totals.where.offset_bytes += static_cast<int64_t>(row) * totals.extent_bytes();
  return totals;
}

Tensor Updater::TotalsOf(GroupId group) const {
  if (rows_.empty()) return state_.totals;
  const auto row = std::find_if(rows_.begin(), rows_.end(), [&](const std::vector<GroupId>& groups) {
    return std::binary_search(groups.begin(), groups.end(), group);
  });
  return Row(row - rows_.begin());
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
  EmitAllReduce(options_.mesh, {.stream = StreamId::kReduce, .phase = phase}, state_.totals.Slice(0, kTotalLoss, 1),
                writer_);
}

void Updater::CombineOverShards(const Tensor& totals, Phase phase) {
  const int64_t shards = options_.mesh.shard;
  if (shards == 1) return;  // Each rank has summed the squares of all elements.
  const Tensor by_shard = writer_.AddTensor("totals_by_shard", BufferCategory::kData,
                                            Tensor::Contiguous(DType::kFloat64, {shards, kTotalSize}));
  writer_.Emit({.stream = StreamId::kReduce, .phase = phase},
               Collective{.kind = CollectiveKind::kAllGather, .local = totals, .full = by_shard});
  writer_.Emit({.stream = StreamId::kCompute, .phase = phase},
               Op(CombineTotals{.groups_G3 = by_shard, .totals_3 = totals, .keeps_loss = state_.loss_scale.present()}));
}

void Updater::SumOverRanks(const Tensor& totals, Phase phase) {
  if (has_replicas()) return CombineOverShards(totals, phase);
  EmitAllReduce(options_.mesh, {.stream = StreamId::kReduce, .phase = phase}, totals, writer_);
}

void Updater::EmitRow(const Tensor& totals, const std::vector<GroupId>& groups) {
  SumLoss(Phase::kUpdate);
  Compute(Op(Copy{.from = state_.totals, .to = totals}));  // For the loss.
  for (const GroupId group : groups) {
    EmitSquares(group, totals.Slice(0, kTotalSquaredNorm, 1), /*accumulate=*/group != groups[0]);
  }
  Compute(Op(FlagNonFinite{.totals_3 = totals, .loss_scale_3 = state_.loss_scale}));
}

Update Updater::EmitPrepare(const Tensor& totals, bool counts, const Optimizer& optimizer) {
  const Tensor update =
      writer_.AddTensor("update", BufferCategory::kData, Tensor::Contiguous(DType::kFloat32, {kUpdateSize}));
  const bool bf16_alone =
      options_.master == MasterWeights::kNone && state_.groups[trained_[0]].own_weight.dtype == DType::kBFloat16;
  Tensor number;
  if (bf16_alone || optimizer.has_bfloat16_states() || optimizer.adafactor) {
    number = writer_.AddTensor("update_number", BufferCategory::kData, Tensor::Contiguous(DType::kInt64, {1}));
  }
  const LossScaling scaling = options_.loss_scaling.value_or(LossScaling());
  Compute(Op(PrepareUpdate{.hyper_2 = hyper_,
                           .valid_tokens_1 = valid_tokens_,
                           .totals_3 = totals,
                           .update_count_1 = state_.update_count,
                           .update_5 = update,
                           .number_1 = number,
                           .previous_norm_1 = state_.previous_norm,
                           .weight_total_1 = weight_total_,
                           .loss_scale_3 = state_.loss_scale,
                           .growth_factor = scaling.growth_factor,
                           .backoff_factor = scaling.backoff_factor,
                           .growth_interval = scaling.growth_interval,
                           .beta1 = optimizer.beta1,
                           .beta2 = optimizer.beta2,
                           .counts = counts,
                           .learning_rate_factor = static_cast<float>(optimizer.learning_rate_factor),
                           .max_norm = static_cast<float>(optimizer.max_gradient_norm.value_or(-1))}));
  return {.update_5 = update, .rule = optimizer.rule, .number_1 = number, .seed = options_.seed};
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

void Updater::EmitUpdate(GroupId group, Update update) {
  const GroupState& g = state_.groups[group];
  update.gradient_P = WidenedGradient(group);
  update.weight_P = g.own_weight;
  update.master_P = g.master;
  update.low_P = g.low;
  update.decayed = std::make_shared<const std::vector<ElementRange>>(g.decayed);
  update.shard_stride = g.placement.owned_stride();
  update.group = group;
  const auto state = [&](const UpdateState& s) -> const Tensor& { return g.states[state_.Find(s)]; };
  const absl::Span<const UpdateState> states = StatesOf(update.rule);
  for (size_t i = 0; i < states.size(); ++i) update.states[i] = state(states[i]);
  if (const auto& adafactor = OptimizerOf(group).adafactor) {
    EmitFactoredDirection(*adafactor, g, state(AdafactorRule::kMoments), update, writer_);
  }
  if (const auto& muon = OptimizerOf(group).muon) {
    EmitOrthogonalDirection(*muon, g, state(muon->momentum_state()), update, writer_);
  }
  Compute(Op(std::move(update)));
  if (!g.placement.placement().gathers_after_update()) return;
  writer_.Emit({.stream = StreamId::kGather, .phase = Phase::kUpdate},
               Collective{.kind = CollectiveKind::kAllGather, .local = g.own_weight, .full = g.full_weight});
}

}  // namespace shale
