// Tests EmbeddingForward and EmbeddingBackward.
#include "kernels/ops/embedding.h"

#include <algorithm>

#include "gtest/gtest.h"
#include "tests/kernels/gradient_check.h"
#include "tests/kernels/op_conformance.h"
#include "tests/kernels/position_ids.h"
#include "tests/kernels/run_errors.h"
#include "tests/kernels/test_backends.h"

namespace shale::testing {
namespace {

struct EmbeddingShape {
  int64_t batch, s, vocabulary, width;
  int64_t positions = 0;  // Rows of the position table; 0 if there is none.
  bool accumulate = false;
  std::vector<int64_t> documents = {};  // Their lengths (PositionIds); empty: a sequence is one document.
  std::vector<double> begins = {};      // One for each sequence, or none.
  float scale = 1;
  std::string Name(DType act) const {
    return NameOf(act) + "_" + std::to_string(batch) + "x" + std::to_string(s) + "_" + std::to_string(vocabulary) +
           "x" + std::to_string(width) + (positions > 0 ? "_positions" : "") + (accumulate ? "_accumulate" : "") +
           (documents.empty() ? "" : "_documents") + (begins.empty() ? "" : "_begins") + (scale != 1 ? "_scaled" : "");
  }
};

EmbeddingForward Forward(TestMemory& memory, const EmbeddingShape& s, DType act) {
  EmbeddingForward op;
  op.tokens_BS = memory.RandomIntegers(DType::kInt32, {s.batch, s.s}, 0, s.vocabulary);
  op.weight_VC = memory.Random(act, {s.vocabulary, s.width});
  if (s.positions > 0) op.positions_PC = memory.Random(act, {s.positions, s.width});
  op.out_TC = memory.Output(act, {s.batch * s.s, s.width});
  if (!s.documents.empty()) op.position_ids_BS = PositionIds(memory, s.documents, s.batch, s.s);
  if (!s.begins.empty()) op.begins_B = memory.Values(DType::kInt32, {s.batch}, s.begins);
  op.scale = s.scale;
  return op;
}

EmbeddingBackward Backward(TestMemory& memory, const EmbeddingShape& s, DType act, DType gradient) {
  EmbeddingBackward op{.accumulate = s.accumulate, .scale = s.scale};
  op.tokens_BS = memory.RandomIntegers(DType::kInt32, {s.batch, s.s}, 0, s.vocabulary);
  op.d_out_TC = memory.Random(act, {s.batch * s.s, s.width});
  const auto table = [&](int64_t rows) {
    return s.accumulate ? memory.Random(gradient, {rows, s.width}) : memory.Output(gradient, {rows, s.width});
  };
  op.d_weight_VC = table(s.vocabulary);
  if (s.positions > 0) op.d_positions_PC = table(s.positions);
  return op;
}

std::vector<OpCase> EmbeddingCases() {
  const std::vector<EmbeddingShape> shapes = {
      {.batch = 1, .s = 1, .vocabulary = 1, .width = 1},
      {.batch = 1, .s = 5, .vocabulary = 3, .width = 7, .positions = 5},
      {.batch = 3, .s = 7, .vocabulary = 11, .width = 16},
      {.batch = 2, .s = 13, .vocabulary = 5, .width = 33, .positions = 17},
      {.batch = 4, .s = 50, .vocabulary = 2, .width = 130},
      {.batch = 2, .s = 150, .vocabulary = 1, .width = 9},  // Three segments of one token, on CUDA.
      {.batch = 1, .s = 6, .vocabulary = 3, .width = 8, .positions = 6, .documents = {1}},
      {.batch = 3, .s = 41, .vocabulary = 7, .width = 33, .positions = 43, .documents = {16, 1, 7, 12}},
      {.batch = 3, .s = 5, .vocabulary = 7, .width = 33, .positions = 43, .begins = {0, 38, 7}},
      {.batch = 3, .s = 7, .vocabulary = 11, .width = 16, .scale = 5.5},
      {.batch = 2, .s = 13, .vocabulary = 5, .width = 33, .positions = 17, .scale = 0.75},
  };
  std::vector<OpCase> cases;
  for (const DType act : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (EmbeddingShape s : shapes) {
      OpCase forward{.name = "Forward_" + s.Name(act)};
      // A product or a sum, rounded once, is exact. Both are rounded twice where an instruction set cannot fuse them.
      forward.op = Forward(forward.memory, s, act);
      if (s.positions > 0 && s.scale != 1) forward.tolerances["out"] = {.absolute = 2 * (s.scale + 1) * kUnit32};
      cases.push_back(forward);
      for (const bool accumulate : {false, true}) {
        s.accumulate = accumulate;
        OpCase backward{.name = "Backward_" + s.Name(act)};
        backward.op = Backward(backward.memory, s, act, DType::kFloat32);
        // At worst all T tokens are equal: T + 1 terms of up to 1.
        const double terms = static_cast<double>(s.batch * s.s) + 1;
        backward.tolerances["d_weight"] =
            backward.tolerances["d_positions"] = {.absolute = std::max(1.0f, s.scale) * terms * terms * kUnit32};
        cases.push_back(backward);
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Embedding, OpConformance, ::testing::ValuesIn(EmbeddingCases()), CaseName);

TEST(EmbeddingTest, BackwardIsTheDerivativeOfForward) {
  GradientCase c;
  const EmbeddingShape s = {.batch = 2, .s = 4, .vocabulary = 3, .width = 3, .positions = 5, .scale = 1.5};
  const EmbeddingForward forward = Forward(c.memory, s, DType::kFloat64);
  EmbeddingBackward backward = Backward(c.memory, s, DType::kFloat64, DType::kFloat64);
  backward.tokens_BS = forward.tokens_BS;
  c.forward = {forward};
  c.backward = {backward};
  c.outputs = {{forward.out_TC, backward.d_out_TC}};
  c.inputs = {{forward.weight_VC, backward.d_weight_VC}, {forward.positions_PC, backward.d_positions_PC}};
  ExpectGradientsMatchFiniteDifferences(c);
}

TEST(EmbeddingTest, PositionIdsAreTheTokensOfThePositionsGradient) {
  GradientCase c;
  const EmbeddingShape s = {.batch = 2, .s = 4, .vocabulary = 3, .width = 3, .positions = 5, .documents = {1, 3, 2}};
  const EmbeddingForward forward = Forward(c.memory, s, DType::kFloat64);
  const Tensor d_out = c.memory.Random(DType::kFloat64, {8, 3});
  const EmbeddingBackward weight = {
      .tokens_BS = forward.tokens_BS, .d_out_TC = d_out, .d_weight_VC = c.memory.Output(DType::kFloat64, {3, 3})};
  const EmbeddingBackward positions = {
      .tokens_BS = forward.position_ids_BS, .d_out_TC = d_out, .d_weight_VC = c.memory.Output(DType::kFloat64, {5, 3})};
  c.forward = {forward};
  c.backward = {weight, positions};
  c.outputs = {{forward.out_TC, d_out}};
  c.inputs = {{forward.weight_VC, weight.d_weight_VC}, {forward.positions_PC, positions.d_weight_VC}};
  ExpectGradientsMatchFiniteDifferences(c);
}

TEST(EmbeddingTest, RowsThatNoTokenNamesBecomeZeroOrStay) {
  for (const bool accumulate : {false, true}) {
    TestMemory memory;
    const std::vector<double> twos(4 * 2, 2.0);
    const EmbeddingBackward op = {.tokens_BS = memory.Values(DType::kInt32, {1, 2}, {3, 3}),
                                  .d_out_TC = memory.Values(DType::kFloat32, {2, 2}, {1, 10, 100, 1000}),
                                  .d_weight_VC = memory.Values(DType::kFloat32, {4, 2}, twos),
                                  .accumulate = accumulate};
    const double before = accumulate ? 2 : 0;
    const std::vector<double> want = {before, before, before, before, before, before, before + 101, before + 1010};
    for (const TestBackend& backend : TestBackends()) {
      std::vector<std::byte> image = RunOnBackend(backend.name, memory, op);
      const Tensor d_weight = memory.Bind(op.d_weight_VC, image.data());
      for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(ElementOf(d_weight, i), want[i]) << backend.name << " " << i;
    }
  }
}

TEST(EmbeddingTest, TokensOutOfRangeAreErrorsThatWriteNothing) {
  for (const double token : {-1.0, 4.0, 2147483647.0, -2147483648.0}) {
    TestMemory memory;
    const Tensor tokens = memory.Values(DType::kInt32, {1, 3}, {0, token, 1});
    const EmbeddingForward forward = {.tokens_BS = tokens,
                                      .weight_VC = memory.Random(DType::kFloat32, {4, 2}),
                                      .out_TC = memory.Output(DType::kFloat32, {3, 2})};
    const EmbeddingBackward backward = {.tokens_BS = tokens,
                                        .d_out_TC = memory.Random(DType::kFloat32, {3, 2}),
                                        .d_weight_VC = memory.Output(DType::kFloat32, {4, 2})};
    for (const Op& op : std::vector<Op>{forward, backward}) {
      ExpectRunFails(memory, op, {"tokens[1]", std::to_string(static_cast<int64_t>(token)), "[0, 4)"});
    }
  }
}

}  // namespace
}  // namespace shale::testing
