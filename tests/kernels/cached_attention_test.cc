// Tests attention over a cache of keys and values.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/ops/attention.h"
#include "tests/kernels/op_conformance.h"
#include "tests/kernels/run_errors.h"
#include "tests/kernels/test_backends.h"

namespace shale::testing {
namespace {

struct CachedShape {
  int64_t s, heads, groups, width;
  int64_t positions;           // P
  std::vector<double> begins;  // One for each sequence.
  int64_t window = 0;
  bool packed = false;  // q, k and v are columns of one matrix.
  int64_t copies = 1;   // Sequences of the cache for each of q.
  double cap = 0;
  int64_t batch() const { return std::ssize(begins); }
};

CachedAttention Make(TestMemory& memory, const CachedShape& s, DType act) {
  const int64_t B = s.batch(), columns = (s.heads + 2 * s.groups) * s.width;
  const Tensor all = memory.Random(act, {B * s.s, columns + (s.packed ? 3 : 0)});
  const auto heads = [&](int64_t begin, int64_t count) {
    if (!s.packed) return memory.Random(act, {B, s.s, count, s.width});
    return all.Slice(1, begin * s.width, count * s.width).SplitLast(count, s.width).SplitFirst(B);
  };
  return {.q_BSHD = heads(0, s.heads),
          .k_BSGD = heads(s.heads, s.groups),
          .v_BSGD = heads(s.heads + s.groups, s.groups),
          .begins_B = memory.Values(DType::kInt32, {B}, s.begins),
          .out_BSHD = memory.Output(act, {B, s.s, s.heads, s.width}),
          .keys_CGPD = memory.Random(act, {B * s.copies, s.groups, s.positions, s.width}),
          .values_CGPD = memory.Random(act, {B * s.copies, s.groups, s.positions, s.width}),
          .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(s.width))),
          .window = s.window,
          .cap = static_cast<float>(s.cap)};
}

// Bounds the error of the result as tests/kernels/attention_test.cc does, for values of up to 1: scores are sums of D
// products, whose error is that of the probabilities, and the result is a mean of `keys` values.
double Tolerance32(const CachedShape& s, double keys) {
  const double root = std::sqrt(static_cast<double>(s.width)), walk = (4 * std::sqrt(keys) + 4) * kUnit32;
  const double score = ((4 * root + 4) * root / 2 + 8 * s.cap) * kUnit32;
  return 2 * (2 * score + walk + (root + std::log(keys) + 8) * kUnit32) + walk;
}

OpCase MakeCachedAttentionCase(const CachedShape& s, DType act) {
  OpCase c;
  c.name = "Cached_" + NameOf(act) + "_B" + std::to_string(s.batch()) + "_S" + std::to_string(s.s) + "_H" +
           std::to_string(s.heads) + "_G" + std::to_string(s.groups) + "_D" + std::to_string(s.width) + "_P" +
           std::to_string(s.positions) + "_at" + std::to_string(static_cast<int64_t>(s.begins[0])) +
           (s.window > 0 ? "_window" + std::to_string(s.window) : "") + (s.packed ? "_packed" : "") +
           (s.copies > 1 ? "_copies" + std::to_string(s.copies) : "") + (s.cap > 0 ? "_capped" : "");
  c.op = Make(c.memory, s, act);
  c.tolerances["out"] = {.absolute = Tolerance32(s, static_cast<double>(s.positions))};
  return c;
}

// Rows (tokens times heads of a group) lie around the blocks of 4, keys around the stretches of 4 and 8 and the vectors
// of 16, D around vectors and groups of four of them, and windows wrap around the cache.
std::vector<OpCase> CachedAttentionCases() {
  const std::vector<CachedShape> shapes = {
      {.s = 1, .heads = 1, .groups = 1, .width = 2, .positions = 1, .begins = {0}},
      {.s = 1, .heads = 2, .groups = 2, .width = 64, .positions = 40, .begins = {39, 0, 17}},
      {.s = 1, .heads = 7, .groups = 1, .width = 16, .positions = 70, .begins = {63, 15}, .packed = true},
      {.s = 1, .heads = 6, .groups = 2, .width = 128, .positions = 33, .begins = {16}},
      {.s = 5, .heads = 2, .groups = 1, .width = 24, .positions = 9, .begins = {4, 0}, .packed = true},
      {.s = 16, .heads = 3, .groups = 3, .width = 5, .positions = 100, .begins = {84, 31, 3}},
      {.s = 33, .heads = 4, .groups = 2, .width = 80, .positions = 50, .begins = {0, 17}},
      {.s = 1, .heads = 2, .groups = 1, .width = 8, .positions = 20, .begins = {400, 19, 5}, .window = 20},
      {.s = 7, .heads = 2, .groups = 2, .width = 33, .positions = 26, .begins = {1000, 2}, .window = 20},
      {.s = 4, .heads = 4, .groups = 2, .width = 12, .positions = 24, .begins = {20, 3}, .window = 100},
      {.s = 3, .heads = 1, .groups = 1, .width = 200, .positions = 4, .begins = {1, 77}, .window = 1},
      {.s = 5, .heads = 4, .groups = 2, .width = 24, .positions = 9, .begins = {4}, .packed = true, .copies = 3},
      {.s = 20, .heads = 2, .groups = 1, .width = 16, .positions = 40, .begins = {300}, .window = 21, .copies = 2},
      {.s = 1, .heads = 7, .groups = 1, .width = 16, .positions = 70, .begins = {63, 15}, .packed = true, .cap = 0.5},
      {.s = 4, .heads = 4, .groups = 2, .width = 12, .positions = 24, .begins = {20, 3}, .window = 100, .cap = 2},
      {.s = 33, .heads = 4, .groups = 2, .width = 80, .positions = 50, .begins = {0, 17}, .cap = 1},
  };
  std::vector<OpCase> cases;
  for (const DType act : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const CachedShape& s : shapes) cases.push_back(MakeCachedAttentionCase(s, act));
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(CachedAttention, OpConformance, ::testing::ValuesIn(CachedAttentionCases()), CaseName);

// Runs `tokens` tokens of random queries, keys and values through a cache, in runs of these lengths, which repeat.
// Before the first run, the cache is full of NaNs. Returns the results of all tokens.
std::vector<double> InRuns(const std::string& backend, CachedShape s, int64_t tokens,
                           const std::vector<int64_t>& lengths) {
  TestMemory all;
  CachedShape whole = s;
  whole.s = tokens;
  const CachedAttention source = Make(all, whole, DType::kFloat32);
  const std::vector<std::byte> image = all.image();
  const auto values = [&](const Tensor& t, int64_t begin, int64_t count) {
    std::vector<std::byte> copy = image;
    const Tensor part = all.Bind(t, copy.data()).Slice(1, begin, count);
    std::vector<double> numbers(part.elements());
    for (int64_t i = 0; i < part.elements(); ++i) numbers[i] = ElementOf(part, i);
    return numbers;
  };
  std::vector<double> out, keys(s.groups * s.positions * s.width, std::numeric_limits<double>::quiet_NaN());
  std::vector<double> cached = keys;
  size_t run = 0;
  for (int64_t begin = 0; begin < tokens; ++run) {
    const int64_t count = std::min(lengths[run % lengths.size()], tokens - begin);
    const DType f32 = DType::kFloat32;
    TestMemory memory;
    const CachedAttention op = {
        .q_BSHD = memory.Values(f32, {1, count, s.heads, s.width}, values(source.q_BSHD, begin, count)),
        .k_BSGD = memory.Values(f32, {1, count, s.groups, s.width}, values(source.k_BSGD, begin, count)),
        .v_BSGD = memory.Values(f32, {1, count, s.groups, s.width}, values(source.v_BSGD, begin, count)),
        .begins_B = memory.Values(DType::kInt32, {1}, {static_cast<double>(begin)}),
        .out_BSHD = memory.Output(f32, {1, count, s.heads, s.width}),
        .keys_CGPD = memory.Values(f32, {1, s.groups, s.positions, s.width}, keys),
        .values_CGPD = memory.Values(f32, {1, s.groups, s.positions, s.width}, cached),
        .scale = source.scale,
        .window = s.window,
        .cap = source.cap};
    std::vector<std::byte> after = RunOnBackend(backend, memory, op);
    const auto read = [&](const Tensor& t, std::vector<double>& to) {
      const Tensor bound = memory.Bind(t, after.data());
      for (int64_t i = 0; i < bound.elements(); ++i) to.push_back(ElementOf(bound, i));
    };
    keys.clear();
    cached.clear();
    read(op.keys_CGPD, keys);
    read(op.values_CGPD, cached);
    read(op.out_BSHD, out);
    begin += count;
  }
  return out;
}

// A cache changes nothing: tokens that come in other runs get the same bits, as long as all runs are short or all are
// long; rows that were never stored are not read; and the results are those of attention over the whole sequence.
TEST(CachedAttentionTest, RunsOfOtherLengthsGiveTheSameBits) {
  constexpr int64_t kTokens = 57;
  for (const CachedShape& s :
       std::vector<CachedShape>{{.heads = 6, .groups = 2, .width = 20, .positions = kTokens + 3, .begins = {0}},
                                {.heads = 2, .groups = 2, .width = 16, .positions = 30, .begins = {0}, .window = 11},
                                {.heads = 4, .groups = 2, .width = 8, .positions = 60, .begins = {0}, .cap = 0.5}}) {
    TestMemory memory;
    CachedShape whole = s;
    whole.s = kTokens;
    const CachedAttention source = Make(memory, whole, DType::kFloat32);
    const AttentionForward forward = {.q_BSHD = source.q_BSHD,
                                      .k_BSGD = source.k_BSGD,
                                      .v_BSGD = source.v_BSGD,
                                      .out_BSHD = memory.Output(DType::kFloat32, {1, kTokens, s.heads, s.width}),
                                      .lse_BHS = memory.Output(DType::kFloat32, {1, s.heads, kTokens}),
                                      .scale = source.scale,
                                      .window = s.window,
                                      .cap = source.cap};
    for (const TestBackend& backend : TestBackends()) {
      SCOPED_TRACE(backend.name);
      const std::vector<double> one = InRuns(backend.name, s, kTokens, {1}),
                                many = InRuns(backend.name, s, kTokens, {19});
      EXPECT_EQ(InRuns(backend.name, s, kTokens, {4, 1, 3}), one);
      EXPECT_EQ(InRuns(backend.name, s, kTokens, {20, 17}), many);
      std::vector<std::byte> image = RunOnBackend(backend.name, memory, forward);
      const Tensor want = memory.Bind(forward.out_BSHD, image.data());
      for (int64_t i = 0; i < want.elements(); ++i) {
        ASSERT_NEAR(one[i], ElementOf(want, i), 2 * Tolerance32(s, kTokens)) << i;
        ASSERT_NEAR(many[i], ElementOf(want, i), 2 * Tolerance32(s, kTokens)) << i;
      }
    }
  }
}

TEST(CachedAttentionTest, ACacheOfOtherSequencesIsRefused) {
  TestMemory memory;
  const CachedAttention op =
      Make(memory, {.s = 1, .heads = 1, .groups = 1, .width = 4, .positions = 8, .begins = {5, 6}, .copies = 2},
           DType::kFloat32);
  EXPECT_EQ(Validate(op).message(), "CachedAttention: q has 2 sequences and the cache has 4; wanted as many, or one");
}

TEST(CachedAttentionTest, PositionsThatTheCacheCannotHoldAreErrorsThatWriteNothing) {
  const auto fails = [](const CachedShape& s, const std::string& message) {
    TestMemory memory;
    ExpectRunFails(memory, Make(memory, s, DType::kFloat32), {"CachedAttention: " + message});
  };
  const CachedShape s = {.s = 3, .heads = 1, .groups = 1, .width = 4, .positions = 8, .begins = {5, 6}};
  fails(s, "begins[1] is 6; wanted one in [0, 5], for 3 tokens before position 8");
  CachedShape negative = s;
  negative.begins = {-1, 0};
  fails(negative, "begins[0] is -1; wanted one in [0, 5]");
  // Three tokens and a window of seven need a cache of nine rows to go on past its end.
  CachedShape ring = s;
  ring.window = 7;
  fails(ring, "begins[1] is 6");
}

}  // namespace
}  // namespace shale::testing
