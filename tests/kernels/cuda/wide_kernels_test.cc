// Tests cross-entropy and attention at widths and with values that the conformance suite of ops does not try.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/loss.h"
#include "tests/kernels/cuda/run_cuda.h"

namespace shale::testing {
namespace {

constexpr DType kActs[] = {DType::kFloat32, DType::kBFloat16};
constexpr double kInfinity = std::numeric_limits<double>::infinity();

CrossEntropy LossOf(TestMemory& memory, const Tensor& logits, const std::vector<double>& targets) {
  const int64_t rows = logits.dim(0);
  return {.logits_TV = logits,
          .targets_T = memory.Values(DType::kInt32, {rows}, targets),
          .scale_1 = memory.Values(DType::kFloat32, {1}, {0.5}),
          .loss_T = memory.Output(DType::kFloat32, {rows})};
}

// Each thread takes several packs at once, and some packs remain. The targets lie in each of these parts. An SM of an
// H200 keeps two rows of up to 73,728 logits in bf16, then one, and of the longest rows only a part.
TEST(CudaCrossEntropy, MatchesTheReferenceAtLongVocabularies) {
  for (const DType act : kActs) {
    for (const double vocabulary : {40000, 73729, 150001}) {
      SCOPED_TRACE(NameOf(act) + " " + std::to_string(vocabulary));
      TestMemory memory;
      const Tensor logits = memory.Random(act, {4, static_cast<int64_t>(vocabulary)}, -8, 8);
      // Two exponentials with their arguments, and sums of about 150 terms in fp32.
      const Tolerance tolerance = {.absolute = 1e-9, .relative = (2 * (4 + 2.2 * 16) + 150) * kUnit32};
      ExpectMatchesReference(memory, LossOf(memory, logits, {0, vocabulary - 1, -1, 17003}), tolerance, 1);
    }
  }
}

// Tries rows that share packs with their neighbors, rows within one pack, and matrices that begin anywhere.
TEST(CudaCrossEntropy, HasTheSameBitsAtAnyAddress) {
  for (const DType act : kActs) {
    for (const int64_t vocabulary : {1, 3, 9, 2047, 4096, 18001}) {
      SCOPED_TRACE(NameOf(act) + " " + std::to_string(vocabulary));
      std::vector<double> drawn, first_bits;
      for (int64_t i = 0; i < 5 * vocabulary; ++i) drawn.push_back(std::sin(static_cast<double>(i * i)));
      for (const int64_t shift : {0, 1, 4}) {
        std::vector<double> shifted(shift, 0.0);
        shifted.insert(shifted.end(), drawn.begin(), drawn.end());
        TestMemory memory;
        const Tensor all = memory.Values(act, {static_cast<int64_t>(shifted.size())}, shifted);
        const Tensor logits = all.Slice(0, shift, 5 * vocabulary).Reshape({5, vocabulary});
        const double last = static_cast<double>(vocabulary - 1);
        const CrossEntropy op = LossOf(memory, logits, {0, last, -1, last / 2, 0});
        std::vector<std::byte> image;
        const absl::Status status = RunOnCuda(memory, op, image);
        ASSERT_TRUE(status.ok()) << status;
        std::vector<double> bits;
        for (int64_t i = 0; i < 5; ++i) bits.push_back(ElementOf(memory.Bind(op.loss_T, image.data()), i));
        for (int64_t i = 0; i < 5 * vocabulary; ++i) bits.push_back(ElementOf(memory.Bind(logits, image.data()), i));
        if (shift == 0) first_bits = bits;
        EXPECT_TRUE(bits == first_bits) << "from " << shift;
      }
    }
  }
}

TEST(CudaCrossEntropy, MaskedLogitsCountNothing) {
  for (const DType act : kActs) {
    for (const int64_t vocabulary : {600, 4096}) {
      std::vector<double> logits(vocabulary, -kInfinity);
      logits[3] = 1;
      logits[vocabulary - 1] = 2;
      TestMemory memory;
      const CrossEntropy op = LossOf(memory, memory.Values(act, {1, vocabulary}, logits), {3});
      ExpectMatchesReference(memory, op, {.relative = 32 * kUnit32}, 1);
    }
  }
}

// A kernel cannot report an error. The loss, and so the step, is not finite.
TEST(CudaCrossEntropy, ATargetPastTheVocabularyGivesNaNs) {
  for (const DType act : kActs) {
    TestMemory memory;
    const CrossEntropy op = LossOf(memory, memory.Random(act, {2, 24}), {24, 5});
    std::vector<std::byte> image;
    ASSERT_TRUE(RunOnCuda(memory, op, image).ok());
    const Tensor loss = memory.Bind(op.loss_T, image.data()), gradient = memory.Bind(op.logits_TV, image.data());
    EXPECT_TRUE(std::isnan(ElementOf(loss, 0)));
    EXPECT_TRUE(std::isfinite(ElementOf(loss, 1)));
    for (int64_t i = 0; i < 48; ++i) EXPECT_EQ(std::isnan(ElementOf(gradient, i)), i < 24) << i;
  }
}

struct HeadShape {
  int64_t s, heads, groups, width, window = 0, gap = 0;
  bool causal = true;
};

// q, k and v lie within 1, so that scores lie within sqrt(D).
AttentionForward MakeForward(TestMemory& memory, DType act, const HeadShape& s) {
  // Each row of [H, D] has a gap behind it.
  const auto heads = [&](int64_t count) {
    return memory.Random(act, {s.s, count * s.width + s.gap})
        .Slice(1, 0, count * s.width)
        .SplitLast(count, s.width)
        .SplitFirst(1);
  };
  return {.q_BSHD = heads(s.heads),
          .k_BSGD = heads(s.groups),
          .v_BSGD = heads(s.groups),
          .out_BSHD = memory.Output(act, {1, s.s, s.heads, s.width}),
          .lse_BHS = memory.Output(DType::kFloat32, {1, s.heads, s.s}),
          .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(s.width))),
          .window = s.window,
          .causal = s.causal};
}

// Tries widths of each size of tile, at its end and beyond the last, with packs and with single elements.
TEST(CudaAttention, TakesHeadsUpTo256Wide) {
  for (const DType act : kActs) {
    for (const HeadShape& s :
         std::vector<HeadShape>{{.s = 40, .heads = 2, .groups = 1, .width = 256},
                                {.s = 21, .heads = 1, .groups = 1, .width = 201},
                                {.s = 41, .heads = 2, .groups = 1, .width = 136, .gap = 3, .causal = false},
                                {.s = 35, .heads = 2, .groups = 1, .width = 136, .window = 9, .gap = 16},
                                {.s = 70, .heads = 3, .groups = 1, .width = 80, .gap = 3}}) {
      SCOPED_TRACE(NameOf(act) + " width " + std::to_string(s.width));
      TestMemory memory;
      const AttentionForward forward = MakeForward(memory, act, s);
      // Scores lie within sqrt(D) and sum D products each: they err by a random walk of 4 sqrt(D) units. All other
      // errors are small beside that.
      const double width = static_cast<double>(s.width);
      const double walk = (4 * std::sqrt(width) + 40) * std::sqrt(width) * kUnit32;
      // Tensor cores take probabilities, and their gradients of at most 2 sqrt(D), rounded to 16 bits.
      const double rounding = act == DType::kFloat32 ? 0 : 2 * UnitOf(act);
      ExpectMatchesReference(memory, forward, {.absolute = walk + rounding}, 1);

      std::vector<std::byte> image = RunOnReference(memory, forward);
      const auto values = [&](const Tensor& t) {
        std::vector<double> all;
        for (int64_t i = 0; i < t.elements(); ++i) all.push_back(ElementOf(memory.Bind(t, image.data()), i));
        return all;
      };
      AttentionBackward backward = {.q_BSHD = forward.q_BSHD, .k_BSGD = forward.k_BSGD, .v_BSGD = forward.v_BSGD};
      backward.scale = forward.scale;
      backward.window = forward.window;
      backward.causal = forward.causal;
      backward.out_BSHD = memory.Values(act, {1, s.s, s.heads, s.width}, values(forward.out_BSHD));
      backward.lse_BHS = memory.Values(DType::kFloat32, {1, s.heads, s.s}, values(forward.lse_BHS));
      backward.d_out_BSHD = memory.Random(act, {1, s.s, s.heads, s.width});
      backward.d_q_BSHD = memory.Output(act, {1, s.s, s.heads, s.width});
      backward.d_k_BSGD = memory.Output(act, {1, s.s, s.groups, s.width});
      backward.d_v_BSGD = memory.Output(act, {1, s.s, s.groups, s.width});
      // Dot products of d_out and v err like the scores before their scale, which comes last here. A key's
      // probabilities add up to at most H (1 + ln S) e^2.
      const double column = s.heads * (1 + std::log(static_cast<double>(s.s))) * std::exp(2.0);
      ExpectMatchesReference(memory, backward, {.absolute = column * (walk + 2 * rounding)}, 1);
    }
  }
}

TEST(CudaAttention, RefusesWiderHeads) {
  TestMemory memory;
  const AttentionForward op = MakeForward(memory, DType::kBFloat16, {.s = 2, .heads = 1, .groups = 1, .width = 264});
  std::vector<std::byte> image;
  const absl::Status status = RunOnCuda(memory, op, image);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(status.message()).find("AttentionForward: heads of width 264"), std::string::npos) << status;
}

}  // namespace
}  // namespace shale::testing
