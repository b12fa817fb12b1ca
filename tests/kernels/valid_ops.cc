#include "tests/kernels/valid_ops.h"

#include "kernels/counter_random.h"
#include "kernels/integers.h"
#include "kernels/nf4.h"
#include "kernels/ops.h"
#include "kernels/step_scalars.h"

namespace shale::testing {
namespace {

constexpr DType kAct = DType::kBFloat16;
constexpr DType kF32 = DType::kFloat32;
constexpr DType kF64 = DType::kFloat64;
constexpr DType kI32 = DType::kInt32;
constexpr DType kI64 = DType::kInt64;

Tensor New(DType dtype, std::initializer_list<int64_t> shape) { return Tensor::Contiguous(dtype, shape); }
Tensor Act(std::initializer_list<int64_t> shape) { return New(kAct, shape); }
Tensor Float(std::initializer_list<int64_t> shape) { return New(kF32, shape); }

std::shared_ptr<const std::vector<ElementRange>> Ranges() {
  return std::make_shared<const std::vector<ElementRange>>(std::vector<ElementRange>{{1, 3}, {5, 9}});
}

// Sizes that differ from one another, so that no mistake passes as another size.
constexpr int64_t kB = 2, kS = 3, kT = kB * kS, kC = 10, kV = 11, kH = 4, kG = 2, kD = 8, kF = 7, kN = 13, kK = 5,
                  kP = 9;

std::vector<Op> EmbeddingOps() {
  return {
      EmbeddingForward{New(kI32, {kB, kS}), Act({kV, kC}), Act({kS + 1, kC}), Act({kT, kC}), New(kI32, {kB, kS})},
      EmbeddingForward{.tokens_BS = New(kI32, {kB, kS}),
                       .weight_VC = Act({kV, kC}),
                       .positions_PC = Act({kS + 1, kC}),
                       .out_TC = Act({kT, kC}),
                       .begins_B = New(kI32, {kB})},
      EmbeddingBackward{New(kI32, {kB, kS}), Act({kT, kC}), Float({kV, kC}), Float({kS + 1, kC})},
  };
}

std::vector<Op> MatMulOps() {
  return {
      MatMul{Act({kT, kK}), Act({kK, kN}), Act({kN}), Act({kT, kN})},
      MatMul{.a = Act({kK, kT}),
             .b = Act({kN, kK}),
             .c_MN = Float({kT, kN}),
             .transpose_a = true,
             .transpose_b = true,
             .accumulate = true},
      MatMul{.a = New(DType::kFloat8E5M2, {kT, 32}),
             .b = New(DType::kFloat8E4M3, {48, 32}),
             .bias_N = Act({48}),
             .c_MN = Act({kT, 48}),
             .scale_a = Float({1}),
             .scale_b = Float({1}),
             .transpose_b = true},
      MatMul{.a = New(DType::kFloat8E4M3, {16, 160}),
             .b = New(DType::kFloat8E4M3, {144, 160}),
             .c_MN = Act({16, 144}),
             .scale_a = Float({2, 16}),
             .scale_b = Float({2, 4}),
             .transpose_b = true,
             .scales = Float8Scales::kBlocks},
      BiasBackward{Act({kT, kN}), Float({kN})},
      AbsMax{Act({kT, kN}), Float({1})},
      QuantizeFloat8{Act({kT, kN}), Float({1}), New(DType::kFloat8E5M2, {kT, kN}), New(DType::kFloat8E5M2, {kN, kT}),
                     Float({1})},
      QuantizeFloat8{.x_RC = Act({136, 200}),
                     .out_RC = New(DType::kFloat8E4M3, {136, 200}),
                     .transposed_CR = New(DType::kFloat8E4M3, {200, 136}),
                     .out_scales = Float({2, 136}),
                     .transposed_scales = Float({2, 200}),
                     .scales = Float8Scales::kTiles},
      TransposeFloat8{New(DType::kFloat8E4M3, {kT, kN}), New(DType::kFloat8E4M3, {kN, kT})},
  };
}

// Ops that compute the matrix which they quantize.
std::vector<Op> Float8SourceOps() {
  return {
      AbsMax{
          Act({kT, kN}), Float({1}), {.kind = Float8Source::Kind::kNorm, .weight_C = Act({kN}), .rstd_R = Float({kT})}},
      AbsMax{Act({kT, kN}),
             Float({1}),
             {.kind = Float8Source::Kind::kLayerNorm,
              .weight_C = Act({kN}),
              .bias_C = Act({kN}),
              .mean_R = Float({kT}),
              .rstd_R = Float({kT})}},
      AbsMax{Act({kB * kS, (kH + 1) * kD}),
             Float({1}),
             {.kind = Float8Source::Kind::kRope,
              .position_ids_BS = New(kI32, {kB, kS}),
              .rotation = {.sequence_length = kS, .heads = kH, .head_width = kD}}},
      AbsMax{Act({kT, kN}), Float({1}), {.kind = Float8Source::Kind::kGeluGradient, .d_y_RF = Act({kT, kN})}},
      QuantizeFloat8{.x_RC = Act({kT, 2 * kF}),
                     .maximum_1 = Float({1}),
                     .out_RC = New(DType::kFloat8E4M3, {kT, kF}),
                     .scale_1 = Float({1}),
                     .source = {.kind = Float8Source::Kind::kGate}},
      QuantizeFloat8{.x_RC = Act({136, 200}),
                     .transposed_CR = New(DType::kFloat8E5M2, {200, 136}),
                     .transposed_scales = Float({2, 200}),
                     .scales = Float8Scales::kTiles,
                     .source = {.kind = Float8Source::Kind::kGateGradient, .d_y_RF = Act({136, 100})}},
  };
}

std::vector<Op> AttentionOps() {
  return {
      Rope{.x_BSHD = Act({kB, kS, kH, kD}), .position_ids_BS = New(kI32, {kB, kS})},
      Rope{.x_BSHD = Act({kB, kS, kH, kD}), .begins_B = New(kI32, {kB})},
      AttentionForward{Act({kB, kS, kH, kD}), Act({kB, kS, kG, kD}), Act({kB, kS, kG, kD}), Act({kB, kS, kH, kD}),
                       Float({kB, kH, kS}), New(kI32, {kB, kS})},
      AttentionBackward{Act({kB, kS, kH, kD}), Act({kB, kS, kG, kD}), Act({kB, kS, kG, kD}), Act({kB, kS, kH, kD}),
                        Float({kB, kH, kS}), Act({kB, kS, kH, kD}), Act({kB, kS, kH, kD}), Act({kB, kS, kG, kD}),
                        Act({kB, kS, kG, kD}), New(kI32, {kB, kS})},
      CachedAttention{Act({kB, kS, kH, kD}), Act({kB, kS, kG, kD}), Act({kB, kS, kG, kD}), New(kI32, {kB}),
                      Act({kB, kS, kH, kD}), Act({kB, kG, kP, kD}), Act({kB, kG, kP, kD})},
  };
}

std::vector<Op> ActivationAndLossOps() {
  return {
      SwiGluForward{Act({kT, 2 * kF}), Act({kT, kF})},
      SwiGluBackward{Act({kT, 2 * kF}), Act({kT, kF}), Act({kT, 2 * kF}), Act({kT, kF})},
      GeluForward{Act({kT, kF}), Act({kT, kF})},
      GeluBackward{Act({kT, kF}), Act({kT, kF}), Act({kT, kF}), GeluKind::kTanh, Act({kT, kF})},
      CrossEntropy{Act({kT, kV}), New(kI32, {kT}), Float({1}), Float({kT})},
      CrossEntropy{.logits_TV = Act({kT, kV}),
                   .targets_T = New(kI32, {kT}),
                   .scale_1 = Float({1}),
                   .loss_T = Float({kT}),
                   .weights_T = Float({kT})},
      SquaredError{Act({kT, kN}), Float({kT, kN}), Float({1}), Float({kT}), Act({kT, kN}), Float({kT})},
  };
}

std::vector<Op> NormOps() {
  return {
      RmsNormForward{Act({kT, kC}), Act({kT, kC}), Act({kC}), Act({kT, kC}), Act({kT, kC}), Float({kT})},
      RmsNormBackward{Act({kT, kC}), Act({kT, kC}), Act({kC}), Float({kT}), Act({kT, kC}), Act({kT, kC}), Float({kC})},
      LayerNormForward{Act({kT, kC}), Act({kT, kC}), Act({kC}), Act({kC}), Act({kT, kC}), Act({kT, kC}), Float({kT}),
                       Float({kT})},
      LayerNormBackward{Act({kT, kC}), Act({kT, kC}), Act({kC}), Float({kT}), Float({kT}), Act({kT, kC}), Act({kT, kC}),
                        Float({kC}), Float({kC})},
  };
}

Update UpdateBy(const UpdateRule& rule) {
  Update op{Float({kUpdateSize}), Float({kN}), Act({kN}), Tensor(), New(DType::kInt16, {kN}), rule};
  const absl::Span<const UpdateState> states = StatesOf(rule);
  for (size_t i = 0; i < states.size(); ++i) {
    op.states[i] = New(states[i].dtype, {CeilDivide(kN, states[i].block)});
  }
  op.decayed = Ranges();
  return op;
}

// A matrix of 2 x 3 and a vector of 4.
Adafactor AdafactorOf(Adafactor::Stage stage) {
  using Stage = Adafactor::Stage;
  const bool sums = stage == Stage::kSums, moments = stage == Stage::kMoments, direction = stage == Stage::kDirection,
             scale = stage == Stage::kScale;
  Adafactor op{.stage = stage, .update_5 = Float({kUpdateSize})};
  if (moments || scale) op.number_1 = New(kI64, {1});
  if (sums || direction) op.gradient_P = Float({kN});
  if (sums || moments) op.sums = Float({kP});
  if (moments || direction) op.moments = Float({kP});
  if (direction || scale) {
    op.weight_P = Act({kN});
    op.direction_P = Float({kN});
    op.totals_Q2 = New(kF64, {2, 2});
  }
  if (scale) op.step_5 = Float({kUpdateSize});
  op.parameters = std::make_shared<const std::vector<FactoredParameter>>(
      std::vector<FactoredParameter>{{.begin = 0, .rows = 2, .columns = 3, .row_begin = 0, .column_begin = 2},
                                     {.begin = 8, .rows = 1, .columns = 4, .column_begin = 5}});
  return op;
}

std::vector<Op> FlatOps() {
  std::vector<Op> ops = {
      Sum{Float({kN}), New(kF64, {1})},
      SumSquares{Float({kN}), New(kF64, {1})},
      Copy{Act({kT, kN}), Float({kT, kN})},
      Add{Act({kT, kN}), Act({kT, kN}), Act({kT, kN})},
      Accumulate{Float({kN}), Float({kN})},
      Accumulate{.x_N = Float({kN}),
                 .total_N = Act({kN}),
                 .update_count_1 = New(kI64, {1}),
                 .micro_batch_1 = New(kI64, {1}),
                 .stream = GradientStream(0)},
      SumRows{New(DType::kBFloat16, {kT, kN}), Float({kN})},
      ZeroRanges{Act({kN}), Ranges()},
      QuantizeShard{.weight_P = Act({kN}), .maxima_WQ = Float({1, 2}), .parameters = Ranges()},
      QuantizeShard{.stage = QuantizeShard::Stage::kQuantize,
                    .weight_P = Act({kN}),
                    .maxima_WQ = Float({kK, 2}),
                    .out_P = New(DType::kFloat8E4M3, {kN}),
                    .scales_Q = Float({2}),
                    .parameters = Ranges()},
      Nf4Dequantize{New(DType::kUInt8, {kT, Nf4Row{2 * kNf4GroupWeights}.bytes()}), Act({kT, 2 * kNf4GroupWeights})},
      MeanFactor{New(kI64, {1}), Float({1})},
      MeanFactor{New(kI64, {1}), Float({1}), New(kF64, {1})},
      FlagNonFinite{New(kF64, {kTotalSize})},
      CombineTotals{New(kF64, {kN, kTotalSize}), New(kF64, {kTotalSize})},
      PrepareUpdate{Float({kHyperSize}), New(kI64, {1}), New(kF64, {kTotalSize}), New(kI64, {1}), Float({kUpdateSize})},
      RecordNorm{New(kI64, {1}), New(kF64, {kTotalSize}), New(kF64, {1})},
  };
  for (const Adafactor::Stage stage :
       {Adafactor::Stage::kSums, Adafactor::Stage::kMoments, Adafactor::Stage::kDirection, Adafactor::Stage::kScale}) {
    ops.push_back(AdafactorOf(stage));
  }
  ops.push_back(MuonDirection{.update_5 = Float({kUpdateSize}),
                              .gradient_P = Float({kN}),
                              .momentum_P = New(DType::kBFloat16, {kN}),
                              .direction_P = Float({kN}),
                              .step_5 = Float({kUpdateSize}),
                              .number_1 = New(kI64, {1})});
  ops.push_back(DivideByNorm{Act({kN}), New(kF64, {1}), Act({kN})});
  ops.push_back(MatrixPolynomial{Act({kN, kN}), Act({kN, kN}), Act({kN, kN})});
  for (const UpdateRule& rule : DefaultRules()) ops.push_back(UpdateBy(rule));
  return ops;
}

}  // namespace

std::vector<Op> ValidOps() {
  std::vector<Op> ops;
  for (std::vector<Op> family :
       {EmbeddingOps(), MatMulOps(), Float8SourceOps(), AttentionOps(), ActivationAndLossOps(), NormOps(), FlatOps()}) {
    for (Op& op : family) {
      int32_t symbol = 0;
      VisitOperands(op, [&](absl::string_view, Tensor& t, Access) {
        if (t.present()) t.where.symbol = symbol++;
      });
      ops.push_back(std::move(op));
    }
  }
  return ops;
}

}  // namespace shale::testing
