// Tests the rotary embedding.
#include "kernels/ops/rope.h"

#include <cmath>

#include "gtest/gtest.h"
#include "kernels/ops/flat.h"
#include "kernels/reference/rope_frequency.h"
#include "tests/kernels/gradient_check.h"
#include "tests/kernels/op_conformance.h"
#include "tests/kernels/position_ids.h"
#include "tests/kernels/test_backends.h"

namespace shale::testing {
namespace {

constexpr RopeScaling kLlama31 = {.factor = 8, .low_freq_factor = 1, .high_freq_factor = 4, .original_context = 64};

struct RopeShape {
  int64_t batch, s, heads, width;
  bool packed = false;  // x is heads [1, heads + 1) of the heads + 3 in each row.
  bool inverse = false;
  RopeScaling scaling;
  std::vector<int64_t> documents = {};  // Their lengths (PositionIds); empty: a sequence is one document.
  std::vector<double> begins = {};      // One for each sequence, or none.
};

OpCase MakeRopeCase(const RopeShape& s, DType act) {
  OpCase c;
  c.name = NameOf(act) + "_" + std::to_string(s.batch) + "x" + std::to_string(s.s) + "x" + std::to_string(s.heads) +
           "x" + std::to_string(s.width) + (s.packed ? "_packed" : "") + (s.inverse ? "_inverse" : "") +
           (s.scaling.factor != 1 ? "_scaled" : "") + (s.documents.empty() ? "" : "_documents") +
           (s.begins.empty() ? "" : "_begins");
  const int64_t row = s.packed ? s.heads + 3 : s.heads;
  Tensor x = c.memory.Random(act, {s.batch * s.s, row * s.width});
  if (s.packed) x = x.Slice(1, s.width, s.heads * s.width);
  c.op = Rope{.x_BSHD = x.SplitLast(s.heads, s.width).SplitFirst(s.batch),
              .position_ids_BS = s.documents.empty() ? Tensor() : PositionIds(c.memory, s.documents, s.batch, s.s),
              .begins_B = s.begins.empty() ? Tensor() : c.memory.Values(DType::kInt32, {s.batch}, s.begins),
              .theta = 10000,
              .scaling = s.scaling,
              .inverse = s.inverse};
  // Cosine and sine, two products and their sum are rounded, each by at most one unit of values of up to 2.
  c.tolerances["x"] = {.absolute = 6 * kUnit32};
  return c;
}

std::vector<OpCase> RopeCases() {
  std::vector<OpCase> cases;
  for (const DType act : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const RopeShape& s : std::vector<RopeShape>{
             {.batch = 1, .s = 1, .heads = 1, .width = 2},
             {.batch = 2, .s = 5, .heads = 3, .width = 6, .packed = true},
             {.batch = 3, .s = 33, .heads = 1, .width = 16, .inverse = true},
             {.batch = 1, .s = 100, .heads = 2, .width = 64, .packed = true, .inverse = true},
             {.batch = 1, .s = 64, .heads = 2, .width = 128, .scaling = kLlama31},
             {.batch = 1, .s = 3000, .heads = 1, .width = 2},
             {.batch = 1, .s = 1, .heads = 1, .width = 2, .documents = {1}},
             {.batch = 2, .s = 5, .heads = 3, .width = 6, .packed = true, .documents = {1}},
             {.batch = 3, .s = 33, .heads = 9, .width = 16, .inverse = true, .documents = {32, 1, 5}},
             {.batch = 1, .s = 200, .heads = 2, .width = 64, .documents = {45, 100, 64}},
             {.batch = 1, .s = 1, .heads = 3, .width = 6, .begins = {131071}},
             {.batch = 3, .s = 40, .heads = 9, .width = 16, .packed = true, .begins = {70, 0, 31}}}) {
      cases.push_back(MakeRopeCase(s, act));
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Rope, OpConformance, ::testing::ValuesIn(RopeCases()), CaseName);

TEST(RopeTest, TheInverseIsTheGradient) {
  constexpr DType kWide = DType::kFloat64;
  GradientCase c;
  const Tensor x = c.memory.Random(kWide, {2, 5, 2, 4}), y = c.memory.Output(kWide, {2, 5, 2, 4});
  const Tensor d_y = c.memory.Random(kWide, {2, 5, 2, 4}), d_x = c.memory.Output(kWide, {2, 5, 2, 4});
  c.forward = {Copy{.from = x, .to = y}, Rope{.x_BSHD = y, .theta = 100}};
  c.backward = {Copy{.from = d_y, .to = d_x}, Rope{.x_BSHD = d_x, .theta = 100, .inverse = true}};
  c.outputs = {{y, d_y}};
  c.inputs = {{x, d_x}};
  ExpectGradientsMatchFiniteDifferences(c);
}

// Pairs are (i, i + D/2), position 0 stays, and position s turns pair i by s theta^(-2i/D).
TEST(RopeTest, KnownValues) {
  TestMemory memory;
  const Rope op = {.x_BSHD = memory.Values(DType::kFloat32, {1, 2, 1, 4}, {1, 2, 3, 4, 1, 2, 3, 4}), .theta = 16};
  const double c0 = std::cos(1.0), s0 = std::sin(1.0), c1 = std::cos(0.25), s1 = std::sin(0.25);
  const std::vector<double> want = {1, 2, 3, 4, c0 - 3 * s0, 2 * c1 - 4 * s1, 3 * c0 + s0, 4 * c1 + 2 * s1};
  for (const TestBackend& backend : TestBackends()) {
    std::vector<std::byte> image = RunOnBackend(backend.name, memory, op);
    const Tensor x = memory.Bind(op.x_BSHD, image.data());
    for (int64_t i = 0; i < 8; ++i) EXPECT_NEAR(ElementOf(x, i), want[i], 1e-6) << backend.name << " " << i;
  }
}

// Rows of a token in a document are turned by the same bits as those of a document alone.
TEST(RopeTest, ADocumentTurnsAsIfItWereAlone) {
  constexpr int64_t kLength = 150, kWidth = 20;
  const std::vector<int64_t> documents = {37, 1, 112};
  for (const TestBackend& backend : TestBackends()) {
    TestMemory memory;
    const std::vector<double> ones(kLength * kWidth, 1.0);
    const Rope alone = {.x_BSHD = memory.Values(DType::kFloat32, {1, kLength, 1, kWidth}, ones)};
    const Rope packed = {.x_BSHD = memory.Values(DType::kFloat32, {1, kLength, 1, kWidth}, ones),
                         .position_ids_BS = PositionIds(memory, documents, 1, kLength)};
    std::vector<std::byte> alone_image = RunOnBackend(backend.name, memory, alone);
    std::vector<std::byte> image = RunOnBackend(backend.name, memory, packed);
    const Tensor want = memory.Bind(alone.x_BSHD, alone_image.data()), got = memory.Bind(packed.x_BSHD, image.data());
    int64_t begin = 0;
    for (const int64_t length : documents) {
      for (int64_t i = 0; i < length * kWidth; ++i) {
        ASSERT_EQ(ElementOf(got, begin * kWidth + i), ElementOf(want, i)) << backend.name << " " << begin << " " << i;
      }
      begin += length;
    }
  }
}

// Tokens that come in several runs are turned by the same bits as in one.
TEST(RopeTest, ASequenceGoesOnWhereItBegins) {
  constexpr int64_t kLength = 100, kWidth = 20;
  for (const TestBackend& backend : TestBackends()) {
    TestMemory memory;
    const auto ones = [&](int64_t length) {
      return memory.Values(DType::kFloat32, {1, length, 1, kWidth}, std::vector<double>(length * kWidth, 1.0));
    };
    const Rope whole = {.x_BSHD = ones(kLength)};
    std::vector<std::byte> image = RunOnBackend(backend.name, memory, whole);
    const Tensor want = memory.Bind(whole.x_BSHD, image.data());
    for (const int64_t begin : {0, 31, 64, 99}) {
      const Rope part = {.x_BSHD = ones(kLength - begin),
                         .begins_B = memory.Values(DType::kInt32, {1}, {static_cast<double>(begin)})};
      std::vector<std::byte> part_image = RunOnBackend(backend.name, memory, part);
      const Tensor got = memory.Bind(part.x_BSHD, part_image.data());
      for (int64_t i = 0; i < got.elements(); ++i) {
        ASSERT_EQ(ElementOf(got, i), ElementOf(want, begin * kWidth + i)) << backend.name << " " << begin << " " << i;
      }
    }
  }
}

// Far from the start, fp32 angles would be off by up to 131071 x 2^-24 = 0.008.
TEST(RopeTest, AnglesKeepTheirPrecisionAtLongContexts) {
  constexpr int64_t kLength = 131072;
  TestMemory memory;
  const Tensor x = memory.Values(DType::kFloat32, {kLength, 2}, std::vector<double>(kLength * 2, 1.0));
  const Rope op = {.x_BSHD = x.SplitLast(1, 2).SplitFirst(1)};
  for (const TestBackend& backend : TestBackends()) {
    std::vector<std::byte> image = RunOnBackend(backend.name, memory, op);
    const Tensor turned = memory.Bind(x, image.data());
    for (const int64_t s : {kLength - 1, kLength - 2, kLength / 2 + 31}) {
      const double angle = static_cast<double>(s);
      EXPECT_NEAR(ElementOf(turned, 2 * s), std::cos(angle) - std::sin(angle), 3e-7) << backend.name;
      EXPECT_NEAR(ElementOf(turned, 2 * s + 1), std::cos(angle) + std::sin(angle), 3e-7) << backend.name;
    }
  }
}

// The numbers of Llama 3.1: theta 500,000, width 128, context 8,192 stretched by 8. Wavelengths below 2,048 stay, those
// above 8,192 grow eightfold, and pairs 29 to 34 lie between.
TEST(RopeTest, ScalingStretchesLongWavelengthsOnly) {
  const RopeScaling llama31 = {.factor = 8, .low_freq_factor = 1, .high_freq_factor = 4, .original_context = 8192};
  const auto plain = [](int64_t i) { return std::pow(500000.0, -static_cast<double>(i) / 64); };
  const auto scaled = [&](int64_t i) { return RopeFrequency(500000, llama31, i, 128); };
  EXPECT_EQ(scaled(0), 1.0);
  EXPECT_DOUBLE_EQ(scaled(28), plain(28));
  EXPECT_DOUBLE_EQ(scaled(36), plain(36) / 8);
  EXPECT_DOUBLE_EQ(scaled(63), plain(63) / 8);
  for (const int64_t i : {29, 32, 34}) {
    const double turns = 8192 * plain(i) / (2 * M_PI);
    ASSERT_GT(turns, 1);
    ASSERT_LT(turns, 4);
    const double kept = (turns - 1) / 3;
    EXPECT_DOUBLE_EQ(scaled(i), plain(i) * (kept + (1 - kept) / 8)) << i;
  }
  for (int64_t i = 0; i < 64; ++i) EXPECT_EQ(RopeFrequency(500000, RopeScaling(), i, 128), plain(i)) << i;
}

}  // namespace
}  // namespace shale::testing
