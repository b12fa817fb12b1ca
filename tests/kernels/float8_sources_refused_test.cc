// What the sources of fp8 matrices refuse ([Note: sources of fp8] in kernels/ops/float8.h).
#include <initializer_list>
#include <string>

#include "gtest/gtest.h"
#include "kernels/ops/float8.h"
#include "kernels/ops/norm.h"
#include "tests/kernels/op_conformance.h"
#include "tests/kernels/run_errors.h"

namespace shale::testing {
namespace {

using Kind = Float8Source::Kind;

TEST(Float8Sources, RefusePositionsThatCountWrongly) {
  TestMemory memory;
  const Tensor x = memory.Random(DType::kBFloat16, {4, 8}), maximum = memory.Output(DType::kFloat32, {1});
  const Float8Source source = {.kind = Kind::kRope,
                               .position_ids_BS = memory.Values(DType::kInt32, {1, 4}, {0, 1, 3, 4}),
                               .rotation = {.sequence_length = 4, .heads = 1, .head_width = 8}};
  ExpectRunFails(memory, AbsMax{x, maximum, source}, {"3"});
  const QuantizeFloat8 quantize = {.x_RC = x,
                                   .maximum_1 = memory.Values(DType::kFloat32, {1}, {1}),
                                   .out_RC = memory.Output(DType::kFloat8E5M2, {4, 8}),
                                   .scale_1 = memory.Output(DType::kFloat32, {1}),
                                   .source = source};
  ExpectRunFails(memory, quantize, {"3"});
}

Tensor Act(std::initializer_list<int64_t> shape) { return Tensor::Contiguous(DType::kBFloat16, shape); }
Tensor Floats(std::initializer_list<int64_t> shape) { return Tensor::Contiguous(DType::kFloat32, shape); }

// Expects that a changed op is refused.
template <class Change>
void ExpectChangedRefused(AbsMax op, const Change& change, const std::string& message) {
  change(op);
  ExpectRefused(op, {message});
}

TEST(Float8Sources, SayWhatTheyWant) {
  const AbsMax norm{Act({5, 14}), Floats({1}), {.kind = Kind::kNorm, .weight_C = Act({14}), .rstd_R = Floats({5})}};
  const AbsMax gate{Act({5, 14}), Floats({1}), {.kind = Kind::kGate}};
  const AbsMax gradient{Act({5, 14}), Floats({1}), {.kind = Kind::kGateGradient, .d_y_RF = Act({5, 7})}};
  for (const AbsMax& op : {norm, gate, gradient}) EXPECT_TRUE(Validate(op).ok()) << Validate(op);
  ExpectChangedRefused(
      norm, [&](AbsMax& op) { op.source.weight_C = Act({13}); }, "weight is bf16[13]; wanted bf16[C=14]");
  ExpectChangedRefused(
      norm, [&](AbsMax& op) { op.source.rstd_R = Tensor(); }, "rstd is missing; wanted f32[R=5]");
  ExpectChangedRefused(
      norm, [&](AbsMax& op) { op.source.kind = Kind::kMatrix; },
      "weight is bf16[14]; wanted none, because the source is matrix");
  ExpectChangedRefused(
      gate,
      [&](AbsMax& op) {
        op.x_RC = Act({5, 13});
      },
      "x is bf16[5, 13]; wanted an even number of columns");
  ExpectChangedRefused(
      gate, [&](AbsMax& op) { op.x_RC.dtype = DType::kFloat32; },
      "x is f32[5, 14]; wanted bf16 or f16, because the source is gate");
  ExpectChangedRefused(
      gradient,
      [&](AbsMax& op) {
        op.source.d_y_RF = Act({5, 14});
      },
      "d_y is bf16[5, 14]; wanted bf16[R=5, F=7]");
  QuantizeFloat8 quantize{.x_RC = gate.x_RC,
                          .maximum_1 = Floats({1}),
                          .out_RC = Tensor::Contiguous(DType::kFloat8E4M3, {5, 7}),
                          .scale_1 = Floats({1}),
                          .source = gate.source};
  EXPECT_TRUE(Validate(quantize).ok()) << Validate(quantize);
  quantize.out_RC.dtype = DType::kFloat8E5M2;
  ExpectRefused(quantize, {"out is f8e5m2[5, 7]; wanted f8e4m3, because the source is gate"});

  RmsNormForward statistics{.x = Act({5, 14}), .rstd_R = Floats({5})};
  EXPECT_TRUE(Validate(statistics).ok()) << Validate(statistics);
  statistics.weight_C = Act({14});
  ExpectRefused(statistics, {"y is missing"});
  LayerNormForward layer_statistics{.x = Act({5, 14}), .mean_R = Floats({5}), .rstd_R = Floats({5})};
  EXPECT_TRUE(Validate(layer_statistics).ok()) << Validate(layer_statistics);
  layer_statistics.bias_C = Act({14});
  ExpectRefused(layer_statistics, {"weight is missing"});
}

TEST(Float8Sources, SayWhatLayerNormsGeluAndRopeWant) {
  const AbsMax layer_norm{Act({5, 14}),
                          Floats({1}),
                          {.kind = Kind::kLayerNorm,
                           .weight_C = Act({14}),
                           .bias_C = Act({14}),
                           .mean_R = Floats({5}),
                           .rstd_R = Floats({5})}};
  const AbsMax gelu{Act({5, 14}), Floats({1}), {.kind = Kind::kGeluGradient, .d_y_RF = Act({5, 14})}};
  const AbsMax rope{Act({6, 14}),
                    Floats({1}),
                    {.kind = Kind::kRope,
                     .position_ids_BS = Tensor::Contiguous(DType::kInt32, {2, 3}),
                     .rotation = {.sequence_length = 3, .heads = 3, .head_width = 4}}};
  for (const AbsMax& op : {layer_norm, gelu, rope}) EXPECT_TRUE(Validate(op).ok()) << Validate(op);
  ExpectChangedRefused(
      layer_norm, [&](AbsMax& op) { op.source.bias_C = Tensor(); }, "bias is missing; wanted bf16[C=14]");
  ExpectChangedRefused(
      layer_norm, [&](AbsMax& op) { op.source.kind = Kind::kNorm; }, "wanted none, because the source is norm");
  ExpectChangedRefused(
      gelu,
      [&](AbsMax& op) {
        op.source.d_y_RF = Act({5, 7});
      },
      "d_y is bf16[5, 7]; wanted bf16[R=5, C=14]");
  ExpectChangedRefused(
      rope, [&](AbsMax& op) { op.source.rotation.sequence_length = 4; }, "wanted rows that are whole sequences of 4");
  ExpectChangedRefused(
      rope, [&](AbsMax& op) { op.source.rotation.heads = 4; }, "wanted room for 4 heads of width 4");
  ExpectChangedRefused(
      rope, [&](AbsMax& op) { op.source.rotation.head_width = 3; }, "heads have the width 3; wanted an even one");
  ExpectChangedRefused(
      rope, [&](AbsMax& op) { op.source.rotation.theta = 0; }, "theta is 0; wanted more than 0");
  ExpectChangedRefused(
      rope,
      [&](AbsMax& op) {
        op.source.position_ids_BS = Tensor::Contiguous(DType::kInt32, {3, 2});
      },
      "position_ids is i32[3, 2]; wanted i32[B=2, S=3]");
}

}  // namespace
}  // namespace shale::testing
