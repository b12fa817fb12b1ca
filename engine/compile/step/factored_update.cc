#include <initializer_list>
#include <string>
#include <utility>

#include "engine/compile/step/update.h"
#include "kernels/ops/adafactor.h"
#include "kernels/step_scalars.h"

namespace shale {

void EmitFactoredDirection(const AdafactorRule& settings, const GroupState& g, const Tensor& own_moments,
                           Update& update, ProgramWriter& writer) {
  const bool divided = g.placement.placement().state == Part::kShard;
  const auto on = [](StreamId stream) { return EmitContext{.stream = stream, .phase = Phase::kUpdate}; };
  const auto add = [&](absl::string_view name, DType dtype, std::initializer_list<int64_t> shape) {
    return writer.AddTensor(std::string(name), BufferCategory::kGradientShards, Tensor::Contiguous(dtype, shape));
  };
  const auto sum = [&](const Tensor& data) {
    if (divided) writer.Emit(on(StreamId::kReduce), Collective{.kind = CollectiveKind::kAllReduceSum, .full = data});
  };
  const int64_t factors = g.factor_placement->elements(Part::kFull);
  const Tensor sums = add("adafactor.sums", DType::kFloat32, {factors});
  const Tensor own_sums = divided ? g.factor_placement->ShardOf(sums) : sums;
  const Tensor moments = divided ? add("adafactor.moments", DType::kFloat32, {factors}) : own_moments;
  const Tensor direction = add("adafactor.direction", DType::kFloat32, {update.gradient_P.elements()});
  const Tensor totals = add("adafactor.totals", DType::kFloat64, {std::ssize(*g.factored), 2});
  const Tensor step =
      writer.AddTensor("adafactor.step", BufferCategory::kData, Tensor::Contiguous(DType::kFloat32, {kUpdateSize}));
  const auto emit = [&](Adafactor pass, int64_t stride) {
    pass.update_5 = update.update_5;
    pass.parameters = g.factored;
    pass.shard_stride = stride;
    pass.beta1 = settings.beta1;
    pass.weight_decay = settings.weight_decay;
    pass.relative_step = settings.relative_step;
    pass.scale_parameter = settings.scale_parameter;
    writer.Emit(on(StreamId::kCompute), Op(std::move(pass)));
  };
  const int64_t stride = g.placement.owned_stride();
  emit({.stage = Adafactor::Stage::kSums, .gradient_P = update.gradient_P, .sums = sums}, stride);
  sum(sums);
  emit({.stage = Adafactor::Stage::kMoments, .number_1 = update.number_1, .sums = own_sums, .moments = own_moments},
       g.factor_placement->owned_stride());
  if (divided) {
    writer.Emit(on(StreamId::kGather),
                Collective{.kind = CollectiveKind::kAllGather, .local = own_moments, .full = moments});
  }
  const auto with_masters = [&](Adafactor pass) {
    pass.weight_P = update.weight_P;
    pass.master_P = update.master_P;
    pass.low_P = update.low_P;
    pass.direction_P = direction;
    pass.totals_Q2 = totals;
    return pass;
  };
  emit(with_masters({.stage = Adafactor::Stage::kDirection, .gradient_P = update.gradient_P, .moments = moments}),
       stride);
  sum(totals);
  emit(with_masters({.stage = Adafactor::Stage::kScale, .number_1 = update.number_1, .step_5 = step}), stride);
  update.gradient_P = direction;
  update.update_5 = step;
  if (!update.rounds_stochastically()) update.number_1 = {};
}

}  // namespace shale
