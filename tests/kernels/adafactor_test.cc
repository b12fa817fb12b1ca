// Tests the passes of Adafactor: on each backend, on shards that begin and end inside of rows, and against
// transformers.optimization.Adafactor.
#include "kernels/ops/adafactor.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "kernels/ops/update.h"
#include "kernels/reference/reference_ops.h"
#include "kernels/step_scalars.h"
#include "tests/kernels/adafactor_goldens.h"
#include "tests/kernels/op_conformance.h"
#include "tests/kernels/update_ops.h"

namespace shale::testing {
namespace {

using Stage = Adafactor::Stage;
using Parameters = std::vector<FactoredParameter>;

// A matrix of 5 x 7, a gap, a vector of 6, and a matrix of one row.
Parameters Small(bool decays = false) {
  return {{.rows = 5, .columns = 7, .row_begin = 0, .column_begin = 5, .decays = decays},
          {.begin = 40, .rows = 1, .columns = 6, .row_begin = -1, .column_begin = 16},
          {.begin = 48, .rows = 1, .columns = 9, .row_begin = 24, .column_begin = 25}};
}
constexpr int64_t kSmallFactors = 36;
// A matrix with rows and columns of more than a block of threads.
Parameters Large() {
  return {{.begin = 3, .rows = 301, .columns = 517, .row_begin = 1, .column_begin = 400, .decays = true}};
}

struct Shard {
  std::string name;
  Parameters parameters;
  int64_t begin, elements, factors;
};

OpCase CaseOf(Stage stage, const Shard& shard, Masters masters, bool scales) {
  OpCase c{.name = shard.name + "_" + std::to_string(static_cast<int>(stage)) + "_" + Name(masters) +
                   (scales ? "_scaled" : "")};
  TestMemory& m = c.memory;
  const int64_t P = shard.elements, F = shard.factors;
  Adafactor op{.stage = stage,
               .update_5 = m.Values(DType::kFloat32, {kUpdateSize}, {0.125, 0.5, 0.25, 0.75, 0}),
               .parameters = std::make_shared<const Parameters>(shard.parameters),
               .shard_begin = shard.begin,
               .weight_decay = 0.25f,
               .relative_step = scales,
               .scale_parameter = scales};
  const auto q = static_cast<int64_t>(shard.parameters.size());
  if (stage == Stage::kMoments || stage == Stage::kScale) op.number_1 = m.Values(DType::kInt64, {1}, {7});
  if (stage == Stage::kSums || stage == Stage::kDirection) op.gradient_P = m.Random(DType::kFloat32, {P});
  if (stage == Stage::kSums) op.sums = m.Output(DType::kFloat32, {F});
  if (stage == Stage::kMoments) {
    op.sums = m.Random(DType::kFloat32, {F}, 0, 4);
    op.shard_begin = 0;
  }
  if (stage == Stage::kMoments || stage == Stage::kDirection) op.moments = m.Random(DType::kFloat32, {F}, 0.25, 4);
  if (stage == Stage::kDirection || stage == Stage::kScale) {
    const bool wide = masters == Masters::kWeight || masters == Masters::kFloatWide;
    const DType narrow = masters == Masters::kHalf ? DType::kFloat16 : DType::kBFloat16;
    op.weight_P = m.Random(wide ? DType::kFloat32 : narrow, {P});
    if (masters == Masters::kSplit) op.low_P = m.RandomIntegers(DType::kInt16, {P}, -32768, 32768);
    if (masters == Masters::kFloatWide || masters == Masters::kFloat || masters == Masters::kHalf) {
      op.master_P = m.Random(DType::kFloat32, {P});
    }
    std::vector<double> totals(2 * q, 40.0);
    op.direction_P = stage == Stage::kScale ? m.Random(DType::kFloat32, {P}) : m.Output(DType::kFloat32, {P});
    op.totals_Q2 =
        stage == Stage::kScale ? m.Values(DType::kFloat64, {q, 2}, totals) : m.Output(DType::kFloat64, {q, 2});
  }
  if (stage == Stage::kScale) op.step_5 = m.Output(DType::kFloat32, {kUpdateSize});
  c.op = op;
  // All arithmetic is fp64, in other orders, and rounded once.
  for (const char* name : {"sums", "moments", "direction"}) c.tolerances[name] = {.relative = 2 * kUnit32};
  // The CPU's kernel sums squares of the rounded direction.
  c.tolerances["totals"] = {.relative = 2 * kUnit32};
  return c;
}

std::vector<OpCase> AdafactorCases() {
  const Shard shards[] = {{"whole", Small(true), 0, 57, kSmallFactors}, {"first", Small(), 0, 19, kSmallFactors},
                          {"inside", Small(), 9, 4, kSmallFactors},     {"across", Small(true), 17, 29, kSmallFactors},
                          {"gap", Small(), 36, 3, kSmallFactors},       {"large", Large(), 0, 301 * 517 + 3, 1000},
                          {"of_large", Large(), 70000, 60001, 1000}};
  std::vector<OpCase> cases;
  for (const Shard& shard : shards) {
    for (const Stage stage : {Stage::kSums, Stage::kMoments, Stage::kDirection, Stage::kScale}) {
      for (const Masters masters : kAllMasters) {
        const bool reads_masters = stage == Stage::kDirection || stage == Stage::kScale;
        if (masters != Masters::kWeight && !reads_masters) continue;
        cases.push_back(CaseOf(stage, shard, masters, /*scales=*/masters != Masters::kSplit));
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Adafactor, OpConformance, ::testing::ValuesIn(AdafactorCases()), CaseName);

// The gradient of element i in a step, as tests/parity/make_adafactor_goldens.py computes it.
float GradientOf(int64_t i, int64_t step) {
  return static_cast<float>(static_cast<double>((i * 37 + step * 101 + i * step * 13) % 199 - 99) * 0.01);
}
float FirstValueOf(int64_t i) { return static_cast<float>(static_cast<double>(i * 29 % 61 - 30) * 0.02); }

struct Golden {
  float beta1, weight_decay;
  bool relative_step, scale_parameter;
  double learning_rate;
  absl::Span<const float> weights;
};

// Runs the passes and the SGD after them on the reference, with one shard of all elements.
std::vector<float> Train(const Golden& golden, int64_t steps) {
  constexpr int64_t kElements = 57, kFactors = kSmallFactors;
  const auto parameters = std::make_shared<const Parameters>(Small(/*decays=*/true));
  std::vector<float> weights(kElements), momentum(kElements), moments(kFactors);
  for (int64_t i = 0; i < kElements; ++i) weights[i] = FirstValueOf(i);
  for (int64_t step = 1; step <= steps; ++step) {
    TestMemory m;
    const auto floats = [&](const std::vector<float>& v) {
      return m.Values(DType::kFloat32, {std::ssize(v)}, std::vector<double>(v.begin(), v.end()));
    };
    std::vector<float> g(kElements, 0);
    for (const FactoredParameter& p : *parameters) {
      for (int64_t i = p.begin; i < p.begin + p.elements(); ++i) g[i] = GradientOf(i, step);
    }
    const Tensor update = m.Values(DType::kFloat32, {kUpdateSize}, {golden.learning_rate, 1, 1, 1, 0}),
                 number = m.Values(DType::kInt64, {1}, {static_cast<double>(step)}), gradient = floats(g),
                 weight = floats(weights), state = floats(momentum), kept = floats(moments),
                 sums = m.Output(DType::kFloat32, {kFactors}), direction = m.Output(DType::kFloat32, {kElements}),
                 totals = m.Output(DType::kFloat64, {3, 2}), own = m.Output(DType::kFloat32, {kUpdateSize});
    Adafactor op{.update_5 = update,
                 .number_1 = number,
                 .gradient_P = gradient,
                 .weight_P = weight,
                 .sums = sums,
                 .moments = kept,
                 .direction_P = direction,
                 .totals_Q2 = totals,
                 .step_5 = own,
                 .parameters = parameters,
                 .beta1 = golden.beta1,
                 .weight_decay = golden.weight_decay,
                 .relative_step = golden.relative_step,
                 .scale_parameter = golden.scale_parameter};
    std::vector<std::byte> image = m.image();
    const auto run = [&](const Op& symbolic) { EXPECT_TRUE(RunReference(m.Bind(symbolic, image.data())).ok()); };
    for (const Stage stage : {Stage::kSums, Stage::kMoments, Stage::kDirection, Stage::kScale}) {
      op.stage = stage;
      run(op);
    }
    Update sgd{.update_5 = own, .gradient_P = direction, .weight_P = weight, .rule = SgdRule{.momentum = golden.beta1}};
    if (golden.beta1 > 0) sgd.states[0] = state;
    run(sgd);
    const auto read = [&](const Tensor& t, std::vector<float>& to) {
      const float* from = m.Bind(t, image.data()).as<const float>();
      to.assign(from, from + t.elements());
    };
    read(weight, weights);
    read(state, momentum);
    read(kept, moments);
  }
  return weights;
}

// Weights agree to 1e-5 of what the parameter has moved. transformers computes in fp32, and both round each weight.
TEST(Adafactor, StepsAsTransformersDoes) {
  for (const Golden& golden :
       {Golden{0, 0, true, true, 1, kRelative}, Golden{0, 0.1f, false, false, 1e-2, kAbsolute},
        Golden{0.9f, 0, true, true, 1, kRelativeMomentum}, Golden{0.9f, 0, false, false, 1e-2, kAbsoluteMomentum},
        Golden{0, 0.1f, false, true, 1e-2, kScaled}}) {
    const std::vector<float> weights = Train(golden, 50);
    ASSERT_EQ(std::ssize(golden.weights), 35 + 6 + 9);
    const float* want = golden.weights.data();
    for (const FactoredParameter& p : Small()) {
      double moved = 0, distance = 0;
      for (int64_t i = p.begin; i < p.begin + p.elements(); ++i, ++want) {
        moved = std::max(moved, std::abs(static_cast<double>(*want) - FirstValueOf(i)));
        distance = std::max(distance, std::abs(static_cast<double>(weights[i]) - *want));
      }
      EXPECT_LE(distance, 1e-5 * moved) << p.begin << " beta1 " << golden.beta1;
      EXPECT_GT(moved, 1e-2);
    }
  }
}

}  // namespace
}  // namespace shale::testing
