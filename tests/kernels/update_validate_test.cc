// Tests that Validate demands the states and hyper-parameters of an update's rule.
#include <limits>

#include "gtest/gtest.h"
#include "kernels/ops/update.h"
#include "tests/kernels/op_conformance.h"
#include "tests/kernels/valid_ops.h"

namespace shale::testing {
namespace {

TEST(Validate, RefusesUpdatesThatContradictTheirRule) {
  std::vector<Update> updates;  // In the order AdamW, SGD, Lion, AdamW8Bit.
  for (const Op& op : ValidOps()) {
    if (const auto* update = op.As<Update>()) updates.push_back(*update);
  }
  ASSERT_EQ(updates.size(), std::variant_size_v<UpdateRule>);
  const Update adamw = updates[0], sgd = updates[1], lion = updates[2], quantized = updates[3];
  const auto expect_refused = [](Update op, const auto& change, const std::vector<std::string>& parts) {
    change(op);
    ExpectRefused(op, parts);
  };
  expect_refused(adamw, [](Update& op) { op.master_P = op.states[0]; }, {"AdamW: master and low are both given"});
  expect_refused(adamw, [](Update& op) { op.low_P = Tensor(); }, {"bf16 weight without master and low", "number"});
  expect_refused(adamw, [](Update& op) { op.weight_P.dtype = DType::kFloat32; }, {"low is given for an f32 weight"});
  expect_refused(
      adamw,
      [](Update& op) {
        op.decayed = std::make_shared<const std::vector<ElementRange>>(std::vector<ElementRange>{{4, 9}, {8, 10}});
      },
      {"decayed", "[8, 10)"});

  // Wrong states: one too few, one too many, of the wrong type or size.
  expect_refused(adamw, [](Update& op) { op.states[1] = Tensor(); }, {"v is missing", "wanted f32[P=13]"});
  expect_refused(lion, [&](Update& op) { op.states[1] = adamw.states[1]; },
                 {"Lion: states[1] is f32[13]", "wanted none", "Lion has 1 state"});
  expect_refused(sgd, [](Update& op) { op.rule = SgdRule{.momentum = 0}; }, {"states[0]", "SGD has 0 states"});
  expect_refused(quantized, [&](Update& op) { op.states[0] = adamw.states[0]; }, {"m is f32[13]", "wanted u8[P=13]"});
  expect_refused(quantized, [](Update& op) { op.states[3] = Tensor::Contiguous(DType::kFloat32, {2}); },
                 {"v_scale is f32[2]", "wanted f32[P/block=1]"});

  // Shards do not divide blocks of state.
  expect_refused(quantized, [](Update& op) { op.shard_begin = 300; }, {"shard_begin is 300", "a multiple of 256"});
  expect_refused(quantized, [](Update& op) { op.shard_stride = 13; }, {"shard_stride is 13", "a multiple of 256"});
  expect_refused(adamw, [](Update& op) { op.shard_begin = -1; }, {"shard_begin is -1"});
  Update apart = quantized;
  apart.shard_begin = 512;
  EXPECT_TRUE(Validate(apart).ok()) << Validate(apart);
  apart = adamw;
  apart.shard_begin = 7;
  EXPECT_TRUE(Validate(apart).ok()) << Validate(apart);

  // Stochastic rounding needs the update's number, and shards at whole blocks of random bits.
  Update alone = adamw;
  alone.low_P = Tensor();
  alone.number_1 = Tensor::Contiguous(DType::kInt64, {1});
  alone.number_1.where.symbol = 100;
  EXPECT_TRUE(Validate(alone).ok()) << Validate(alone);
  expect_refused(alone, [](Update& op) { op.shard_begin = 12; }, {"shard_begin is 12", "a multiple of 8"});
  expect_refused(alone, [](Update& op) { op.number_1.dtype = DType::kInt32; }, {"number is i32[1]", "wanted i64"});
  expect_refused(adamw, [&](Update& op) { op.number_1 = alone.number_1; }, {"nothing is rounded stochastically"});
  expect_refused(adamw, [](Update& op) { op.rule = AdamWRule{.state_dtype = DType::kBFloat16}; },
                 {"bf16 states", "number"});
  expect_refused(adamw, [](Update& op) { op.rule = AdamWRule{.state_dtype = DType::kUInt8}; },
                 {"state_dtype is u8", "wanted f32 or bf16"});

  // Wrong hyper-parameters.
  const float nan = std::numeric_limits<float>::quiet_NaN();
  expect_refused(adamw, [](Update& op) { op.rule = AdamWRule{.beta1 = 1}; }, {"beta1 is 1", "less than 1"});
  expect_refused(adamw, [&](Update& op) { op.rule = AdamWRule{.beta2 = nan}; }, {"beta2 is nan"});
  expect_refused(adamw, [](Update& op) { op.rule = AdamWRule{.epsilon = -1}; }, {"epsilon is -1"});
  expect_refused(adamw, [](Update& op) { op.rule = AdamWRule{.weight_decay = -1}; }, {"weight_decay is -1"});
  expect_refused(lion, [](Update& op) { op.rule = LionRule{.beta1 = -0.5f}; }, {"beta1 is -0.5"});
  expect_refused(lion, [](Update& op) { op.rule = LionRule{.beta2 = 1.5f}; }, {"beta2 is 1.5"});
  expect_refused(quantized, [](Update& op) { op.rule = AdamW8BitRule{.beta2 = 1}; }, {"beta2 is 1"});
  expect_refused(sgd, [](Update& op) { op.rule = SgdRule{.momentum = 1}; }, {"momentum is 1"});
  Update plain = sgd;
  plain.states[0] = Tensor();
  plain.rule = SgdRule{.momentum = 0};
  EXPECT_TRUE(Validate(plain).ok()) << Validate(plain);
  plain.rule = SgdRule{.momentum = 0, .nesterov = true};
  ExpectRefused(plain, {"SGD: nesterov is set and momentum is 0"});
}

}  // namespace
}  // namespace shale::testing
