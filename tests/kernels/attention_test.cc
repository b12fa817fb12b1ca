// Tests attention with grouped heads, causal and in both directions.
#include "kernels/ops/attention.h"

#include <cmath>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/gradient_check.h"
#include "tests/kernels/op_conformance.h"
#include "tests/kernels/position_ids.h"
#include "tests/kernels/run_errors.h"
#include "tests/kernels/test_backends.h"

namespace shale::testing {
namespace {

struct AttentionShape {
  int64_t batch, s, heads, groups, width;
  int64_t window = 0;
  bool packed = false;  // q, k and v (and their gradients) are columns of one matrix.
  double range = 1;     // q, k and v lie in [-range, range).
  bool causal = true;
  std::vector<int64_t> documents = {};  // Their lengths (PositionIds); empty: a sequence is one document.
  double cap = 0;
  int64_t query_heads_per_group() const { return heads / groups; }
};

std::string NameOfCase(const char* kind, const AttentionShape& s, DType act) {
  return std::string(kind) + "_" + NameOf(act) + "_B" + std::to_string(s.batch) + "_S" + std::to_string(s.s) + "_H" +
         std::to_string(s.heads) + "_G" + std::to_string(s.groups) + "_D" + std::to_string(s.width) +
         (s.window > 0 ? "_window" + std::to_string(s.window) : "") + (s.packed ? "_packed" : "") +
         (s.range != 1 ? "_range" + std::to_string(static_cast<int>(s.range)) : "") + (s.causal ? "" : "_both_ways") +
         (s.documents.empty()
              ? ""
              : "_documents" + std::to_string(s.documents.size()) + "_of_" + std::to_string(s.documents[0])) +
         (s.cap > 0 ? "_capped" : "");
}

using Sizes = std::initializer_list<int64_t>;

struct Heads {
  Tensor q, k, v;
};

// Makes q [B, S, H, D] and k, v [B, S, G, D]. If packed, they are columns of one matrix [T, (H + 2G) D + 3].
template <class Make>
Heads MakeHeads(const AttentionShape& s, const Make& make) {
  if (!s.packed) {
    return {make({s.batch, s.s, s.heads, s.width}), make({s.batch, s.s, s.groups, s.width}),
            make({s.batch, s.s, s.groups, s.width})};
  }
  const Tensor all = make({s.batch * s.s, (s.heads + 2 * s.groups) * s.width + 3});
  const auto columns = [&](int64_t begin, int64_t heads) {
    return all.Slice(1, begin * s.width, heads * s.width).SplitLast(heads, s.width).SplitFirst(s.batch);
  };
  return {columns(0, s.heads), columns(s.heads, s.groups), columns(s.heads + s.groups, s.groups)};
}

AttentionForward Forward(TestMemory& memory, const AttentionShape& s, DType act, DType lse) {
  const Heads heads = MakeHeads(s, [&](Sizes shape) { return memory.Random(act, shape, -s.range, s.range); });
  return {.q_BSHD = heads.q,
          .k_BSGD = heads.k,
          .v_BSGD = heads.v,
          .out_BSHD = memory.Output(act, {s.batch, s.s, s.heads, s.width}),
          .lse_BHS = memory.Output(lse, {s.batch, s.heads, s.s}),
          .position_ids_BS = s.documents.empty() ? Tensor() : PositionIds(memory, s.documents, s.batch, s.s),
          .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(s.width))),
          .window = s.window,
          .causal = s.causal,
          .cap = static_cast<float>(s.cap)};
}

// Returns the backward op of `forward`, with a random d_out.
AttentionBackward Backward(TestMemory& memory, const AttentionShape& s, DType act, const AttentionForward& forward) {
  const Heads d = MakeHeads(s, [&](Sizes shape) { return memory.Output(act, shape); });
  return {.q_BSHD = forward.q_BSHD,
          .k_BSGD = forward.k_BSGD,
          .v_BSGD = forward.v_BSGD,
          .out_BSHD = forward.out_BSHD,
          .lse_BHS = forward.lse_BHS,
          .d_out_BSHD = memory.Random(act, {s.batch, s.s, s.heads, s.width}),
          .d_q_BSHD = d.q,
          .d_k_BSGD = d.k,
          .d_v_BSGD = d.v,
          .position_ids_BS = forward.position_ids_BS,
          .scale = forward.scale,
          .window = s.window,
          .causal = s.causal,
          .cap = forward.cap};
}

// Returns a tensor in `to` with the contents that `t` has in `image`.
Tensor CopyOf(TestMemory& to, const TestMemory& from, const Tensor& t, std::vector<std::byte>& image, Sizes shape) {
  const Tensor bound = from.Bind(t, image.data());
  std::vector<double> values(t.elements());
  for (int64_t i = 0; i < t.elements(); ++i) values[i] = ElementOf(bound, i);
  return to.Values(t.dtype, shape, values);
}

// Bounds the errors of what the kernels have in common, with u = 2^-24. A sum of n products x y, rounded n times, errs
// by a random walk: by at most 4 sqrt(n) u sum |x y| (Higham and Mary, 2019), where sum |x y| is at most half of n max
// |x| max |y|.
struct Errors {
  Errors(const AttentionShape& s, DType act) {
    const double d = static_cast<double>(s.width), root = std::sqrt(d), keys = static_cast<double>(s.s);
    largest_score = root * s.range * s.range;
    // Includes the error of the scaling.
    score = (4 * root + 4) * kUnit32 * largest_score / 2;
    // tanh errs by 4 units of at most 1, and its argument, result and derivative are rounded; the derivative is at
    // most 1.
    if (s.cap > 0) score += 8 * s.cap * kUnit32;
    lse = score + (4 * std::sqrt(keys) + 4) * kUnit32 + (largest_score + std::log(keys)) * kUnit32;
    // A relative error, from the argument, the exponential and the division.
    probability = score + lse + 8 * kUnit32;
    // With operands of 16 bits, probabilities and their gradients may be rounded to that before they are multiplied.
    // Softmax may be computed in blocks of at least 128 keys, each of which may correct the sums so far by an
    // exponential, which errs by 2 u and, since x e^-x < 1, by u from its argument x, and by the product.
    if (act != DType::kFloat32) {
      const double corrections = std::floor(keys / 128) * 4 * kUnit32;
      lse += corrections;
      probability += UnitOf(act) + corrections;
    }
  }
  double largest_score, score, lse, probability;
};

OpCase ForwardCase(const AttentionShape& s, DType act) {
  OpCase c{.name = NameOfCase("Forward", s, act)};
  c.op = Forward(c.memory, s, act, DType::kFloat32);
  const Errors errors(s, act);
  c.tolerances["lse"] = {.absolute = errors.lse};
  // out is a mean of values of up to `range`, weighted by the probabilities, which sum to 1.
  const double mean = (4 * std::sqrt(static_cast<double>(s.s)) + 4) * kUnit32;
  c.tolerances["out"] = {.absolute = s.range * (2 * errors.probability + mean)};
  return c;
}

OpCase BackwardCase(const AttentionShape& s, DType act) {
  OpCase c{.name = NameOfCase("Backward", s, act)};
  TestMemory before;
  AttentionForward forward = Forward(before, s, act, DType::kFloat32);
  std::vector<std::byte> image = RunOnReference(before, forward);
  AttentionForward known = Forward(c.memory, s, act, DType::kFloat32);  // The same q, k and v, from the same seed.
  known.out_BSHD = CopyOf(c.memory, before, forward.out_BSHD, image, {s.batch, s.s, s.heads, s.width});
  known.lse_BHS = CopyOf(c.memory, before, forward.lse_BHS, image, {s.batch, s.heads, s.s});
  const AttentionBackward op = Backward(c.memory, s, act, known);
  c.op = op;

  // d_out v^T and delta are sums of D products each. They lie within 6 sqrt(D) / 3 of zero: six standard deviations,
  // where one product d_out v has a deviation of 1/3 range.
  const Errors errors(s, act);
  const double d = static_cast<double>(s.width), queries = static_cast<double>(s.s);
  const double d_p = 2 * std::sqrt(d) * s.range;
  const double d_p_error = 2 * 4 * std::sqrt(d) * kUnit32 * d * s.range / 2;
  const double walk = (4 * std::sqrt(queries * s.query_heads_per_group()) + 4) * kUnit32;
  const double slope = s.cap > 0 ? 16 * kUnit32 : 0;
  const double ds_error = d_p_error + 2 * d_p * (errors.probability + walk + slope);  // Per unit of probability.
  c.tolerances["d_q"] = {.absolute = op.scale * s.range * ds_error};
  // The sum of a key's probabilities over all queries of its group: about 1 + 1/2 + ... + 1/S per head, or 1 if the op
  // is not causal, times what the scores may add.
  const double column =
      s.query_heads_per_group() * (1 + std::log(queries)) * std::exp(std::min(2.0, errors.largest_score));
  c.tolerances["d_k"] = {.absolute = op.scale * s.range * column * ds_error};
  c.tolerances["d_v"] = {.absolute = column * (errors.probability + walk)};
  return c;
}

// S, the windows and the documents lie around the strips of 32, 48 or 64 queries, the groups of 6 or 8 queries, the
// tiles of 16 or 32 keys, the slices of 16, and the blocks of 64 or 128 keys. D lies around the tiles of 16 or 32.
std::vector<AttentionShape> CausalShapes() {
  return {
      {.batch = 1, .s = 1, .heads = 1, .groups = 1, .width = 2},
      {.batch = 1, .s = 7, .heads = 2, .groups = 1, .width = 6},
      {.batch = 2, .s = 33, .heads = 6, .groups = 2, .width = 16},
      {.batch = 1, .s = 65, .heads = 2, .groups = 2, .width = 64},
      {.batch = 1, .s = 100, .heads = 2, .groups = 1, .width = 40},
      {.batch = 1, .s = 40, .heads = 2, .groups = 2, .width = 128},
      {.batch = 1, .s = 41, .heads = 1, .groups = 1, .width = 5},
      {.batch = 1, .s = 70, .heads = 2, .groups = 1, .width = 16, .window = 1},
      {.batch = 2, .s = 97, .heads = 2, .groups = 1, .width = 24, .window = 5},
      {.batch = 1, .s = 150, .heads = 2, .groups = 2, .width = 8, .window = 33},
      {.batch = 1, .s = 64, .heads = 2, .groups = 1, .width = 32, .window = 64},
      {.batch = 1, .s = 39, .heads = 1, .groups = 1, .width = 10, .window = 1000},
      {.batch = 1, .s = 49, .heads = 4, .groups = 2, .width = 40, .window = 17},
      {.batch = 1, .s = 47, .heads = 2, .groups = 2, .width = 33},
      {.batch = 2, .s = 96, .heads = 2, .groups = 1, .width = 20, .window = 13},
      {.batch = 1, .s = 144, .heads = 1, .groups = 1, .width = 18, .window = 51},
      {.batch = 1, .s = 113, .heads = 3, .groups = 3, .width = 64, .window = 20},
      {.batch = 2, .s = 45, .heads = 4, .groups = 2, .width = 12, .packed = true},
      {.batch = 1, .s = 83, .heads = 6, .groups = 1, .width = 10, .window = 9, .packed = true},
      {.batch = 1, .s = 72, .heads = 2, .groups = 1, .width = 16, .range = 8},
      {.batch = 1, .s = 34, .heads = 2, .groups = 1, .width = 80},
      {.batch = 1, .s = 35, .heads = 1, .groups = 1, .width = 48},
      {.batch = 1, .s = 270, .heads = 1, .groups = 1, .width = 4},
      {.batch = 1, .s = 170, .heads = 1, .groups = 1, .width = 6, .window = 130},
      {.batch = 1, .s = 140, .heads = 1, .groups = 1, .width = 8, .range = 8},
  };
}

std::vector<AttentionShape> BidirectionalShapes() {
  return {
      {.batch = 1, .s = 1, .heads = 1, .groups = 1, .width = 2, .causal = false},
      {.batch = 2, .s = 7, .heads = 2, .groups = 1, .width = 5, .causal = false},
      {.batch = 2, .s = 33, .heads = 6, .groups = 2, .width = 16, .causal = false},
      {.batch = 1, .s = 64, .heads = 2, .groups = 2, .width = 40, .causal = false},
      {.batch = 1, .s = 65, .heads = 2, .groups = 1, .width = 64, .causal = false},
      {.batch = 1, .s = 47, .heads = 2, .groups = 2, .width = 33, .causal = false},
      {.batch = 2, .s = 49, .heads = 2, .groups = 1, .width = 18, .causal = false},
      {.batch = 1, .s = 96, .heads = 1, .groups = 1, .width = 20, .causal = false},
      {.batch = 2, .s = 83, .heads = 4, .groups = 2, .width = 12, .packed = true, .causal = false},
      {.batch = 1, .s = 270, .heads = 1, .groups = 1, .width = 4, .causal = false},
      {.batch = 1, .s = 140, .heads = 1, .groups = 1, .width = 8, .range = 8, .causal = false},
  };
}

std::vector<AttentionShape> DocumentShapes() {
  return {
      {.batch = 1, .s = 1, .heads = 1, .groups = 1, .width = 2, .documents = {1}},
      {.batch = 2, .s = 70, .heads = 2, .groups = 1, .width = 16, .documents = {1}},
      {.batch = 1, .s = 97, .heads = 2, .groups = 2, .width = 24, .documents = {97}},
      {.batch = 3, .s = 33, .heads = 6, .groups = 2, .width = 16, .documents = {5, 1, 1, 12, 9}},
      {.batch = 1, .s = 192, .heads = 2, .groups = 1, .width = 32, .documents = {64, 32, 96}},
      {.batch = 2, .s = 144, .heads = 2, .groups = 1, .width = 20, .documents = {48, 96}},
      {.batch = 2, .s = 129, .heads = 2, .groups = 1, .width = 40, .documents = {31, 1, 33, 63, 1}},
      {.batch = 1, .s = 270, .heads = 1, .groups = 1, .width = 4, .documents = {133, 7, 121, 9}},
      {.batch = 1, .s = 420, .heads = 2, .groups = 1, .width = 6, .documents = {300, 15, 105}},
      {.batch = 1, .s = 300, .heads = 1, .groups = 1, .width = 64, .documents = {190, 3, 100, 7}},
      {.batch = 2, .s = 170, .heads = 1, .groups = 1, .width = 6, .window = 20, .documents = {50, 3, 90, 27}},
      {.batch = 2, .s = 83, .heads = 4, .groups = 2, .width = 12, .window = 9, .packed = true, .documents = {6, 30, 7}},
      {.batch = 1, .s = 260, .heads = 1, .groups = 1, .width = 8, .range = 8, .documents = {140, 20, 1, 99}},
  };
}

std::vector<AttentionShape> WideShapes() {
  return {
      {.batch = 1, .s = 100, .heads = 2, .groups = 1, .width = 128, .documents = {37, 63}},
      {.batch = 1, .s = 70, .heads = 2, .groups = 2, .width = 104, .window = 40},
      {.batch = 1, .s = 70, .heads = 2, .groups = 1, .width = 256, .documents = {37, 33}},
      {.batch = 1, .s = 66, .heads = 1, .groups = 1, .width = 136, .window = 40, .cap = 2},
      {.batch = 1, .s = 33, .heads = 1, .groups = 1, .width = 200, .causal = false},
  };
}

std::vector<AttentionShape> CappedShapes() {
  return {
      {.batch = 1, .s = 1, .heads = 1, .groups = 1, .width = 2, .cap = 0.5},
      {.batch = 2, .s = 33, .heads = 6, .groups = 2, .width = 16, .cap = 0.25},
      {.batch = 1, .s = 72, .heads = 2, .groups = 1, .width = 16, .range = 8, .cap = 50},
      {.batch = 2, .s = 97, .heads = 2, .groups = 1, .width = 24, .window = 5, .cap = 2},
      {.batch = 1, .s = 270, .heads = 1, .groups = 1, .width = 4, .cap = 1},
      {.batch = 1, .s = 47, .heads = 2, .groups = 2, .width = 33, .causal = false, .cap = 1},
      {.batch = 2, .s = 129, .heads = 2, .groups = 1, .width = 40, .documents = {31, 1, 33, 63, 1}, .cap = 3},
  };
}

std::vector<OpCase> AttentionCases() {
  std::vector<AttentionShape> shapes;
  for (const std::vector<AttentionShape>& some :
       {CausalShapes(), BidirectionalShapes(), DocumentShapes(), WideShapes(), CappedShapes()}) {
    shapes.insert(shapes.end(), some.begin(), some.end());
  }
  std::vector<OpCase> cases;
  for (const DType act : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (size_t i = 0; i < shapes.size(); ++i) {
      // f16 differs from bf16 in how elements are read and written alone, so a few shapes of each kind suffice.
      const bool odd = shapes[i].packed || shapes[i].cap > 0;
      if (act == DType::kFloat16 && i % (odd ? 2 : 8) != 0) continue;
      cases.push_back(ForwardCase(shapes[i], act));
      cases.push_back(BackwardCase(shapes[i], act));
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Attention, OpConformance, ::testing::ValuesIn(AttentionCases()), CaseName);

TEST(AttentionTest, BackwardIsTheDerivativeOfForward) {
  std::vector<AttentionShape> shapes(8, {.batch = 2, .s = 4, .heads = 4, .groups = 2, .width = 3});
  shapes[1].window = shapes[4].window = 2;
  shapes[2].causal = false;
  shapes[3].documents = shapes[4].documents = {1, 3, 2};
  shapes[5].cap = shapes[6].cap = shapes[7].cap = 0.5;
  shapes[6].window = 2;
  shapes[7].causal = false;
  for (const AttentionShape& s : shapes) {
    SCOPED_TRACE(NameOfCase("", s, DType::kFloat64));
    GradientCase c;
    const AttentionForward forward = Forward(c.memory, s, DType::kFloat64, DType::kFloat64);
    const AttentionBackward backward = Backward(c.memory, s, DType::kFloat64, forward);
    c.forward = {forward};
    c.backward = {backward};
    c.outputs = {{forward.out_BSHD, backward.d_out_BSHD}};
    c.inputs = {
        {forward.q_BSHD, backward.d_q_BSHD}, {forward.k_BSGD, backward.d_k_BSGD}, {forward.v_BSGD, backward.d_v_BSGD}};
    ExpectGradientsMatchFiniteDifferences(c);
  }
}

// With q = 0 every visible key counts alike, so that out is the mean of the visible values. With v[j] = j, that is the
// mean of the numbers from the first visible key to the last. The expected values are worked out by hand, to check the
// reference too.
TEST(AttentionTest, AQueryAveragesTheKeysItSees) {
  constexpr int64_t kLength = 75, kBothWays = -1;
  for (const int64_t window : std::initializer_list<int64_t>{0, 1, 6, 40, 75, 76, kBothWays}) {
    TestMemory memory;
    std::vector<double> numbers(kLength * 2);
    for (int64_t i = 0; i < kLength * 2; ++i) numbers[i] = static_cast<double>(i / 2);
    const AttentionForward op = {
        .q_BSHD = memory.Values(DType::kFloat32, {1, kLength, 1, 2}, std::vector<double>(kLength * 2)),
        .k_BSGD = memory.Random(DType::kFloat32, {1, kLength, 1, 2}),
        .v_BSGD = memory.Values(DType::kFloat32, {1, kLength, 1, 2}, numbers),
        .out_BSHD = memory.Output(DType::kFloat32, {1, kLength, 1, 2}),
        .lse_BHS = memory.Output(DType::kFloat32, {1, 1, kLength}),
        .window = std::max<int64_t>(0, window),
        .causal = window != kBothWays};
    for (const TestBackend& backend : TestBackends()) {
      std::vector<std::byte> image = RunOnBackend(backend.name, memory, op);
      const Tensor out = memory.Bind(op.out_BSHD, image.data()), lse = memory.Bind(op.lse_BHS, image.data());
      for (int64_t i = 0; i < kLength; ++i) {
        const double first = window > 0 ? std::max<double>(0, static_cast<double>(i - window + 1)) : 0;
        const double last = static_cast<double>(op.causal ? i : kLength - 1);
        EXPECT_NEAR(ElementOf(out, 2 * i), (first + last) / 2, 1e-4)
            << backend.name << " window " << window << " " << i;
        EXPECT_NEAR(ElementOf(lse, i), std::log(last - first + 1), 1e-5)
            << backend.name << " window " << window << " " << i;
      }
    }
  }
}

// A key that a query does not see changes none of its bits, however large the key is, even if they share a block.
TEST(AttentionTest, LaterKeysChangeNoBitOfAnEarlierQuery) {
  constexpr int64_t kLength = 45, kSeen = 37;
  const AttentionShape s = {.batch = 1, .s = kLength, .heads = 1, .groups = 1, .width = 8};
  for (const TestBackend& backend : TestBackends()) {
    SCOPED_TRACE(backend.name);
    std::vector<std::vector<double>> outs;
    for (const double later : {1.0, 1e30}) {
      TestMemory memory;
      std::vector<double> k(kLength * 8, 0.25), v(kLength * 8, 0.5);
      for (int64_t i = kSeen * 8; i < kLength * 8; ++i) k[i] = v[i] = later;
      AttentionForward op = Forward(memory, s, DType::kFloat32, DType::kFloat32);
      op.k_BSGD = memory.Values(DType::kFloat32, {1, kLength, 1, 8}, k);
      op.v_BSGD = memory.Values(DType::kFloat32, {1, kLength, 1, 8}, v);
      std::vector<std::byte> image = RunOnBackend(backend.name, memory, op);
      const Tensor out = memory.Bind(op.out_BSHD, image.data());
      outs.emplace_back();
      for (int64_t i = 0; i < kSeen * 8; ++i) outs.back().push_back(ElementOf(out, i));
    }
    EXPECT_EQ(outs[0], outs[1]);
  }
}

// The op of packed documents computes what an op of each document alone computes.
TEST(AttentionTest, ADocumentAttendsAsIfItWereAlone) {
  constexpr int64_t kLength = 171, kWidth = 16;
  const AttentionShape s = {
      .batch = 1, .s = kLength, .heads = 1, .groups = 1, .width = kWidth, .documents = {40, 1, 130}};
  const double tolerance = 4 * Errors(s, DType::kFloat32).probability + 100 * kUnit32;
  for (const TestBackend& backend : TestBackends()) {
    SCOPED_TRACE(backend.name);
    TestMemory memory;
    const AttentionForward packed = Forward(memory, s, DType::kFloat32, DType::kFloat32);
    std::vector<std::byte> image = RunOnBackend(backend.name, memory, packed);
    const Tensor out = memory.Bind(packed.out_BSHD, image.data());
    int64_t begin = 0;
    for (const int64_t length : s.documents) {
      TestMemory own;
      const auto rows = [&](const Tensor& t) {
        const Tensor all = memory.Bind(t, image.data());
        std::vector<double> values(length * kWidth);
        for (int64_t i = 0; i < length * kWidth; ++i) values[i] = ElementOf(all, begin * kWidth + i);
        return own.Values(DType::kFloat32, {1, length, 1, kWidth}, values);
      };
      const AttentionForward alone = {.q_BSHD = rows(packed.q_BSHD),
                                      .k_BSGD = rows(packed.k_BSGD),
                                      .v_BSGD = rows(packed.v_BSGD),
                                      .out_BSHD = own.Output(DType::kFloat32, {1, length, 1, kWidth}),
                                      .lse_BHS = own.Output(DType::kFloat32, {1, 1, length}),
                                      .scale = packed.scale};
      std::vector<std::byte> own_image = RunOnBackend(backend.name, own, alone);
      const Tensor want = own.Bind(alone.out_BSHD, own_image.data());
      for (int64_t i = 0; i < length * kWidth; ++i) {
        ASSERT_NEAR(ElementOf(out, begin * kWidth + i), ElementOf(want, i), tolerance) << begin << " " << i;
      }
      begin += length;
    }
  }
}

TEST(AttentionTest, PositionIdsThatSkipAreErrorsThatWriteNothing) {
  for (const auto& ids : std::vector<std::vector<double>>{{1, 0, 1}, {0, 2, 0}, {0, 1, 1}, {0, -1, 0}, {0, 1, 3}}) {
    TestMemory memory;
    AttentionForward forward =
        Forward(memory, {.batch = 1, .s = 3, .heads = 1, .groups = 1, .width = 4}, DType::kFloat32, DType::kFloat32);
    forward.position_ids_BS = memory.Values(DType::kInt32, {1, 3}, ids);
    ExpectRunFails(memory, forward, {"AttentionForward: position_ids[", "; wanted 0"});
  }
}

TEST(AttentionTest, ANaNIsSeenByEveryQueryThatReadsIt) {
  for (const bool causal : {true, false}) {
    const AttentionShape s = {.batch = 1, .s = 50, .heads = 2, .groups = 1, .width = 8, .causal = causal};
    for (const TestBackend& backend : TestBackends()) {
      SCOPED_TRACE(backend.name + (causal ? "" : " not causal"));
      TestMemory memory;
      AttentionForward op = Forward(memory, s, DType::kFloat32, DType::kFloat32);
      std::vector<double> k(50 * 8, 0.25);
      k[33 * 8 + 3] = std::nan("");
      op.k_BSGD = memory.Values(DType::kFloat32, {1, 50, 1, 8}, k);
      std::vector<std::byte> image = RunOnBackend(backend.name, memory, op);
      const Tensor out = memory.Bind(op.out_BSHD, image.data()), lse = memory.Bind(op.lse_BHS, image.data());
      for (int64_t i = 0; i < 50; ++i) {
        EXPECT_EQ(std::isnan(ElementOf(out, i * 16)), i >= 33 || !causal) << i;
        EXPECT_EQ(std::isnan(ElementOf(lse, i)), i >= 33 || !causal) << i;
      }
    }
  }
}

}  // namespace
}  // namespace shale::testing
