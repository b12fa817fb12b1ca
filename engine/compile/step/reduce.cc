#include "engine/compile/step/reduce.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/counter_random.h"
#include "kernels/integers.h"
#include "kernels/ops/flat.h"

namespace shale {
namespace {

// Returns the elements of a flat group whose gradients no op of `units` writes: gaps between parameters, parameters
// that only other units use, and rows that none of the units uses (positions past the sequence length).
std::vector<ElementRange> Unwritten(const ModelGraph& model, const std::vector<int>& units, GroupId group,
                                    const ShardLayout& layout) {
  std::vector<ElementRange> written;
  const auto note = [&](const UnitGraph& unit, const Op& op) {
    VisitOperands(op, [&](absl::string_view, const Tensor& t, Access) {
      if (!t.present()) return;
      const Value& value = unit.values[t.where.symbol];
      if (value.role != ValueRole::kParameterGradient || model.parameters[value.parameter].group != group) return;
      const int64_t begin =
          layout.Find(model.parameters[value.parameter].name)->offset_elements + t.where.offset_bytes / SizeOf(t.dtype);
      written.push_back({begin, begin + t.extent()});
    });
  };
  for (int u : units) {
    for (const Node& node : model.units[u].forward) note(model.units[u], node.op);
    for (const Node& node : model.units[u].backward) note(model.units[u], node.op);
  }
  std::sort(written.begin(), written.end(), [](auto& a, auto& b) { return a.begin < b.begin; });
  std::vector<ElementRange> unwritten;
  int64_t at = 0;
  for (const ElementRange& range : written) {
    if (range.begin > at) unwritten.push_back({at, range.begin});
    at = std::max(at, range.end);
  }
  if (at < layout.padded_elements()) unwritten.push_back({at, layout.padded_elements()});
  return unwritten;
}

}  // namespace

Reducer::Reducer(const ModelGraph& model, const StepOptions& options, const JobState& state, ProgramWriter& writer)
    : model_(model),
      options_(options),
      state_(state),
      writer_(writer),
      layered_(options.accumulation == Accumulation::kLayered),
      groups_written_(model.units.size()),
      progress_(model.groups.size()) {
  for (size_t u = 0; u < model.units.size(); ++u) {
    std::set<GroupId> groups;
    for (const Value& value : model.units[u].values) {
      if (value.role == ValueRole::kParameterGradient) groups.insert(model.parameters[value.parameter].group);
    }
    groups_written_[u].assign(groups.begin(), groups.end());
    for (GroupId group : groups) progress_[group].units.push_back(static_cast<int>(u));
  }
}

absl::Status Reducer::CheckRoundings() const {
  for (GroupId group = 0; group < std::ssize(progress_); ++group) {
    const GroupState& g = state_.groups[group];
    const int64_t units = std::ssize(progress_[group].units);
    if (units == 0 || g.full_gradient.present()) continue;  // A full gradient is rounded once a step.
    const bool sends = sends_narrow() && g.placement.placement().reduces();
    const bool keeps = g.own_gradient.dtype != DType::kFloat32;  // Also rounds the sum over replicas.
    const int64_t most = (sends ? kMostSentGradients : int64_t{kGradientStreams}) - (keeps ? 1 : 0);
    if ((!sends && !keeps) || units <= most) continue;
    return absl::InvalidArgumentError(absl::StrCat(units, " units use the parameters of ", model_.groups[group].name,
                                                   ", and their gradients in bf16 have random bits for at most ", most,
                                                   " units; set ",
                                                   sends ? "precision.reduce FP32" : "precision.gradient_shards FP32",
                                                   ", or let fewer units share these parameters"));
  }
  return absl::OkStatus();
}

void Reducer::BeginUnit(int unit) {
  for (GroupId group : GroupsWritten(unit)) {
    const GroupState& g = state_.groups[group];
    GroupProgress& progress = progress_[group];
    Tensor gradient = g.full_gradient;
    std::vector<int> writers = progress.units;
    if (!gradient.present()) {
      gradient = progress.unit_gradient = writer_.AddTensor(
          absl::StrCat(model_.groups[group].name, ".unit_gradient"), BufferCategory::kUnshardedGradients,
          Tensor::Contiguous(DType::kFloat32, {g.placement.elements(Part::kFull)}));
      writers = {unit};
    } else if (progress.units_done > 0) {
      continue;  // The group's first unit has zeroed what none of its units writes.
    }
    auto ranges = std::make_shared<std::vector<ElementRange>>(Unwritten(model_, writers, group, g.layout()));
    if (ranges->empty()) continue;
    writer_.Emit({.phase = Phase::kBackward, .unit = unit, .micro_batch = micro_batch()},
                 Op(ZeroRanges{.x_N = gradient, .ranges = std::move(ranges)}));
  }
}

Tensor Reducer::Gradient(int unit, ParameterId parameter) {
  const GroupId group = model_.parameters[parameter].group;
  const GroupState& g = state_.groups[group];
  const Tensor& flat = g.full_gradient.present() ? g.full_gradient : progress_[group].unit_gradient;
  SHALE_CHECK(flat.present()) << model_.units[unit].name << ": no gradient for " << model_.parameters[parameter].name;
  const ShardLayout::PlacedParameter* placement = g.layout().Find(model_.parameters[parameter].name);
  return flat.Slice(0, placement->offset_elements, placement->elements);
}

bool Reducer::SetAccumulation(int unit, Op& op, const std::vector<ParameterId>& parameters) {
  // In SHARDED, a unit gradient holds one micro-batch. All other gradient buffers accumulate every micro-batch.
  int first_writes = 0;
  bool every_micro_batch = false;
  std::set<BufferId> buffers;
  for (ParameterId parameter : parameters) {
    buffers.insert(Gradient(unit, parameter).where.symbol);
    every_micro_batch = state_.groups[model_.parameters[parameter].group].full_gradient.present() || layered_;
  }
  VisitOperands(std::as_const(op), [&](absl::string_view, const Tensor& t, Access access) {
    if (!t.present() || access == Access::kRead || buffers.count(t.where.symbol) == 0) return;
    first_writes += written_.insert({t.where.symbol, t.where.offset_bytes}).second;
  });
  SHALE_CHECK(first_writes == 0 || first_writes == std::ssize(parameters))
      << model_.units[unit].name << ": one op writes a gradient for the first time and adds to another";
  SetAccumulate(op, first_writes == 0 || every_micro_batch);
  return first_writes > 0 && every_micro_batch;
}

void Reducer::Reduce(int unit) {
  for (GroupId group : GroupsWritten(unit)) {
    ++progress_[group].units_done;
    if (state_.groups[group].full_gradient.present()) {
      ReduceStepGradient(unit, group);
    } else {
      ReduceUnitGradient(unit, group);
    }
  }
  for (GroupId group : GroupsWritten(unit)) {
    // Its gradient is complete now, or in a loop over micro-batches in the last iteration.
    if (progress_[group].units.front() == unit) SumOverReplicas(unit, group);
  }
}

void Reducer::SumOverReplicas(int unit, GroupId group) {
  const GroupState& g = state_.groups[group];
  if (!g.placement.placement().sums_over_replicas()) return;
  const EmitContext context{.stream = StreamId::kReduce,
                            .phase = Phase::kReduce,
                            .unit = unit,
                            .micro_batch = micro_batch(),
                            .once_a_step = true};
  Tensor sum = g.own_gradient;
  const bool narrow = sum.dtype != DType::kFloat32;
  if (narrow && IsReducedOnce(group)) return;  // It was summed before it was rounded.
  if (narrow) {
    sum = writer_.AddTensor(absl::StrCat(model_.groups[group].name, ".gradient.widened"),
                            BufferCategory::kGradientShards, Tensor::Contiguous(DType::kFloat32, {sum.elements()}));
    writer_.Emit(context, Op(Copy{.from = g.own_gradient, .to = sum}));
  }
  writer_.Emit(context, Collective{.kind = CollectiveKind::kAllReduceSum, .axis = MeshAxis::kReplicate, .full = sum});
  if (!narrow) return;
  EmitAccumulate(context, group, sum, /*accumulate=*/false, static_cast<int>(progress_[group].units.size()),
                 /*first_iteration_differs=*/false);
}

void Reducer::ReduceStepGradient(int unit, GroupId group) {
  const GroupState& g = state_.groups[group];
  if (!g.placement.placement().reduces()) return;
  if (progress_[group].units_done < std::ssize(progress_[group].units)) return;
  const EmitContext context{.stream = StreamId::kReduce,
                            .phase = Phase::kReduce,
                            .unit = unit,
                            .micro_batch = micro_batch(),
                            .once_a_step = true};
  if (sends_narrow()) {
    return EmitNarrowReduction(context, group, g.full_gradient, g.own_gradient, /*accumulate=*/false, /*rounding=*/0,
                               /*first_iteration_differs=*/false);
  }
  Collective reduce{.kind = g.placement.placement().reduction(), .full = g.full_gradient};
  if (reduce.kind == CollectiveKind::kReduceScatterSum) {
    reduce.local = g.own_gradient;
  } else {
    reduce.axis = MeshAxis::kAll;
  }
  writer_.Emit(context, reduce);
}

void Reducer::ReduceUnitGradient(int unit, GroupId group) {
  const GroupState& g = state_.groups[group];
  const Placement& placement = g.placement.placement();
  const bool narrow = g.own_gradient.dtype != DType::kFloat32, once = IsReducedOnce(group);
  const Tensor full = progress_[group].unit_gradient;
  const bool first = progress_[group].units_done == 1;
  const bool one_iteration = layered_ || options_.micro_batches == 1;
  const bool accumulates = !first || !one_iteration, first_iteration_differs = first && !one_iteration;
  const int number = progress_[group].units_done - 1;  // Of this reduction among those of the group.
  EmitContext context{.phase = Phase::kReduce, .unit = unit, .micro_batch = micro_batch()};
  Tensor reduced = full;
  if (placement.reduces()) {
    context.stream = StreamId::kReduce;
    if (sends_narrow() && !narrow) {
      return EmitNarrowReduction(context, group, full, g.own_gradient, accumulates, number, first_iteration_differs);
    }
    if (sends_narrow()) {
      reduced = writer_.AddTensor(absl::StrCat(model_.groups[group].name, ".gradient.reduced"),
                                  BufferCategory::kGradientShards,
                                  Tensor::Contiguous(DType::kFloat32, {g.own_gradient.elements()}));
      EmitNarrowReduction(context, group, full, reduced, /*accumulate=*/false, number,
                          /*first_iteration_differs=*/false);
    } else {
      // The sum overwrites the rank's shard of the unit gradient, or goes straight into the fp32 shard of the group.
      reduced = once && !narrow ? g.own_gradient : g.placement.ShardOf(full);
      writer_.Emit(context, Collective{.kind = CollectiveKind::kReduceScatterSum, .local = reduced, .full = full});
      if (once && !narrow) return;
    }
    if (once && placement.sums_over_replicas()) {
      writer_.Emit(context,
                   Collective{.kind = CollectiveKind::kAllReduceSum, .axis = MeshAxis::kReplicate, .full = reduced});
    }
  }
  EmitAccumulate(context, group, reduced, accumulates, number, first_iteration_differs);
}

void Reducer::EmitNarrowReduction(const EmitContext& context, GroupId group, const Tensor& full, const Tensor& sum,
                                  bool accumulate, int rounding, bool first_iteration_differs) {
  // A part is a stretch of every rank's shard.
  const int64_t ranks = state_.groups[group].placement.placement().mesh.shard, shard = sum.elements();
  const int64_t most = options_.sent_part_bytes / SizeOf(DType::kBFloat16) / ranks;
  const int64_t part =
      RoundUp(std::clamp(most, CeilDivide(shard, StepOptions::kMostSentParts), shard), ShardLayout::kAlignment);
  const absl::string_view name = model_.groups[group].name;
  const auto add = [&](absl::string_view what, int64_t elements) {
    return writer_.AddTensor(absl::StrCat(name, ".gradient.", what), BufferCategory::kUnshardedGradients,
                             Tensor::Contiguous(DType::kBFloat16, {elements}));
  };
  const Tensor sent = add("sent", full.elements()), received = add("received", ranks * std::min(part, shard));
  Accumulate rounded{.x_N = full, .total_N = sent, .shard_stride = full.elements(), .by_rank = true};
  rounded.stream = SentGradientStream(rounding);
  EmitContext rounds = context;
  rounds.stream = StreamId::kCompute;
  SetRounding(rounds, group, rounded);
  writer_.Emit(rounds, Op(std::move(rounded)));
  for (int64_t begin = 0; begin < shard; begin += part) {
    const int64_t count = std::min(part, shard - begin);
    const Tensor rows = received.Slice(0, 0, ranks * count).Reshape({ranks, count});
    writer_.Emit(context, Collective{.kind = CollectiveKind::kAllToAll,
                                     .local = rows,
                                     .full = sent.Reshape({ranks, shard}).Slice(1, begin, count)});
    writer_.Emit(context, Op(SumRows{.x_WN = rows, .total_N = sum.Slice(0, begin, count), .accumulate = accumulate}),
                 first_iteration_differs);
  }
}

void Reducer::SetRounding(const EmitContext& context, GroupId group, Accumulate& op) {
  if (writer_.in_loop() && !micro_batch_.present()) {
    micro_batch_ = writer_.AddTensor(std::string(ToString(StepItem::kMicroBatch)), BufferCategory::kData,
                                     Tensor::Contiguous(RowOf(StepItem::kMicroBatch).dtype, {1}));
    EmitContext copy = context;
    copy.stream = StreamId::kCopy;
    copy.once_a_step = false;
    writer_.Emit(copy, StepItemCopy{StepItem::kMicroBatch, micro_batch_});
  }
  op.update_count_1 = state_.update_count;
  op.micro_batch_1 = micro_batch_;
  op.seed = options_.seed;
  op.group = group;
}

void Reducer::EmitAccumulate(const EmitContext& context, GroupId group, const Tensor& x, bool accumulate, int rounding,
                             bool first_iteration_differs) {
  const GroupState& g = state_.groups[group];
  Accumulate op{.x_N = x, .total_N = g.own_gradient, .accumulate = accumulate};
  if (op.rounds()) {
    op.shard_stride = g.placement.owned_stride();
    op.stream = GradientStream(rounding);
    SetRounding(context, group, op);
  }
  writer_.Emit(context, Op(std::move(op)), first_iteration_differs);
}

}  // namespace shale
