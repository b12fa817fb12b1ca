// Tests that Validate demands the states and hyper-parameters of an update's rule.
#include <limits>
#include <variant>

#include "gtest/gtest.h"
#include "kernels/ops/update.h"
#include "tests/kernels/op_conformance.h"
#include "tests/kernels/valid_ops.h"

namespace shale::testing {
namespace {

// Returns the valid update by a rule.
template <class Rule>
Update UpdateBy() {
  for (const Op& op : ValidOps()) {
    const auto* update = op.As<Update>();
    if (update != nullptr && std::holds_alternative<Rule>(update->rule)) return *update;
  }
  ADD_FAILURE() << "no valid update has this rule";
  return {};
}

// Expects that an update is refused once it has been changed.
template <class Change>
void ExpectRefusedAfter(Update op, const Change& change, const std::vector<std::string>& parts) {
  change(op);
  ExpectRefused(op, parts);
}

TEST(Validate, RefusesUpdatesThatContradictTheirRule) {
  const Update adamw = UpdateBy<AdamWRule>();
  ExpectRefusedAfter(adamw, [](Update& op) { op.master_P = op.states[0]; }, {"AdamW: master and low are both given"});
  ExpectRefusedAfter(adamw, [](Update& op) { op.low_P = Tensor(); }, {"bf16 weight without master and low", "number"});
  ExpectRefusedAfter(adamw, [](Update& op) { op.weight_P.dtype = DType::kFloat32; },
                     {"low is given for an f32 weight"});
  ExpectRefusedAfter(
      adamw,
      [](Update& op) {
        op.decayed = std::make_shared<const std::vector<ElementRange>>(std::vector<ElementRange>{{4, 9}, {8, 10}});
      },
      {"decayed", "[8, 10)"});
}

// One state too few, one too many, and states of the wrong type or size.
TEST(Validate, RefusesStatesThatAreNotThoseOfTheRule) {
  const Update adamw = UpdateBy<AdamWRule>(), sgd = UpdateBy<SgdRule>(), lion = UpdateBy<LionRule>(),
               quantized = UpdateBy<AdamW8BitRule>();
  ExpectRefusedAfter(adamw, [](Update& op) { op.states[1] = Tensor(); }, {"v is missing", "wanted f32[P=13]"});
  ExpectRefusedAfter(lion, [&](Update& op) { op.states[1] = adamw.states[1]; },
                     {"Lion: states[1] is f32[13]", "wanted none", "Lion has 1 state"});
  ExpectRefusedAfter(sgd, [](Update& op) { op.rule = SgdRule{.momentum = 0}; }, {"states[0]", "SGD has 0 states"});
  ExpectRefusedAfter(quantized, [&](Update& op) { op.states[0] = adamw.states[0]; },
                     {"m is f32[13]", "wanted u8[P=13]"});
  ExpectRefusedAfter(quantized, [](Update& op) { op.states[3] = Tensor::Contiguous(DType::kFloat32, {2}); },
                     {"v_scale is f32[2]", "wanted f32[P/block=1]"});
}

TEST(Validate, RefusesShardsThatDivideBlocksOfState) {
  const Update adamw = UpdateBy<AdamWRule>(), quantized = UpdateBy<AdamW8BitRule>();
  ExpectRefusedAfter(quantized, [](Update& op) { op.shard_begin = 300; }, {"shard_begin is 300", "a multiple of 256"});
  ExpectRefusedAfter(quantized, [](Update& op) { op.shard_stride = 13; }, {"shard_stride is 13", "a multiple of 256"});
  ExpectRefusedAfter(adamw, [](Update& op) { op.shard_begin = -1; }, {"shard_begin is -1"});
  Update apart = quantized;
  apart.shard_begin = 512;
  EXPECT_TRUE(Validate(apart).ok()) << Validate(apart);
  apart = adamw;
  apart.shard_begin = 7;
  EXPECT_TRUE(Validate(apart).ok()) << Validate(apart);
}

// Stochastic rounding needs the number of the update, and shards at whole blocks of random bits.
TEST(Validate, KnowsWhatStochasticRoundingNeeds) {
  const Update adamw = UpdateBy<AdamWRule>();
  Update alone = adamw;
  alone.low_P = Tensor();
  alone.number_1 = Tensor::Contiguous(DType::kInt64, {1});
  alone.number_1.where.symbol = 100;
  EXPECT_TRUE(Validate(alone).ok()) << Validate(alone);
  ExpectRefusedAfter(alone, [](Update& op) { op.shard_begin = 12; }, {"shard_begin is 12", "a multiple of 8"});
  ExpectRefusedAfter(alone, [](Update& op) { op.number_1.dtype = DType::kInt32; }, {"number is i32[1]", "wanted i64"});
  ExpectRefusedAfter(adamw, [&](Update& op) { op.number_1 = alone.number_1; }, {"nothing is rounded stochastically"});
  ExpectRefusedAfter(adamw, [](Update& op) { op.rule = AdamWRule{.state_dtype = DType::kBFloat16}; },
                     {"bf16 states", "number"});
  ExpectRefusedAfter(adamw, [](Update& op) { op.rule = AdamWRule{.state_dtype = DType::kUInt8}; },
                     {"state_dtype is u8", "wanted f32 or bf16"});
}

TEST(Validate, RefusesWrongHyperparametersOfRules) {
  const Update adamw = UpdateBy<AdamWRule>(), sgd = UpdateBy<SgdRule>(), lion = UpdateBy<LionRule>(),
               quantized = UpdateBy<AdamW8BitRule>();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  ExpectRefusedAfter(adamw, [](Update& op) { op.rule = AdamWRule{.beta1 = 1}; }, {"beta1 is 1", "less than 1"});
  ExpectRefusedAfter(adamw, [&](Update& op) { op.rule = AdamWRule{.beta2 = nan}; }, {"beta2 is nan"});
  ExpectRefusedAfter(adamw, [](Update& op) { op.rule = AdamWRule{.epsilon = -1}; }, {"epsilon is -1"});
  ExpectRefusedAfter(adamw, [](Update& op) { op.rule = AdamWRule{.weight_decay = -1}; }, {"weight_decay is -1"});
  ExpectRefusedAfter(lion, [](Update& op) { op.rule = LionRule{.beta1 = -0.5f}; }, {"beta1 is -0.5"});
  ExpectRefusedAfter(lion, [](Update& op) { op.rule = LionRule{.beta2 = 1.5f}; }, {"beta2 is 1.5"});
  ExpectRefusedAfter(quantized, [](Update& op) { op.rule = AdamW8BitRule{.beta2 = 1}; }, {"beta2 is 1"});
  ExpectRefusedAfter(sgd, [](Update& op) { op.rule = SgdRule{.momentum = 1}; }, {"momentum is 1"});
  Update plain = sgd;
  plain.states[0] = Tensor();
  plain.rule = SgdRule{.momentum = 0};
  EXPECT_TRUE(Validate(plain).ok()) << Validate(plain);
  plain.rule = SgdRule{.momentum = 0, .nesterov = true};
  ExpectRefused(plain, {"SGD: nesterov is set and momentum is 0"});
}

}  // namespace
}  // namespace shale::testing
