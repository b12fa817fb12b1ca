// Tests the embedding kernels with tokens out of range, and with more positions than one tile of the sort.
#include <cmath>
#include <iterator>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/ops/embedding.h"
#include "tests/kernels/cuda/run_cuda.h"

namespace shale::testing {
namespace {

TEST(CudaEmbedding, ATokenOutOfRangeGivesNaNsAndGetsNothing) {
  for (const DType act : {DType::kFloat32, DType::kBFloat16}) {
    for (const double token : {-1.0, 4.0, 2147483647.0, -2147483648.0}) {
      TestMemory memory;
      const std::vector<double> tokens = {0, token, 3, token, 0};
      const EmbeddingForward forward = {.tokens_BS = memory.Values(DType::kInt32, {1, 5}, tokens),
                                        .weight_VC = memory.Random(act, {4, 8}),
                                        .positions_PC = memory.Random(act, {5, 8}),
                                        .out_TC = memory.Output(act, {5, 8})};
      const EmbeddingBackward backward = {.tokens_BS = forward.tokens_BS,
                                          .d_out_TC = memory.Values(act, {5, 8}, std::vector<double>(40, 0.5)),
                                          .d_weight_VC = memory.Output(DType::kFloat32, {4, 8})};
      std::vector<std::byte> image;
      absl::Status status = RunOnCuda(memory, forward, image);
      ASSERT_TRUE(status.ok()) << status;
      const Tensor out = memory.Bind(forward.out_TC, image.data());
      for (int64_t i = 0; i < 40; ++i) EXPECT_EQ(std::isnan(ElementOf(out, i)), tokens[i / 8] == token) << i;
      status = RunOnCuda(memory, backward, image);
      ASSERT_TRUE(status.ok()) << status;
      const Tensor d_weight = memory.Bind(backward.d_weight_VC, image.data());
      for (int64_t i = 0; i < 32; ++i) EXPECT_EQ(ElementOf(d_weight, i), i < 8 ? 1.0 : i < 24 ? 0.0 : 0.5) << i;
    }
  }
}

// How often each token occurs: around the segments in which the sums of frequent tokens are cut.
constexpr int64_t kCounts[] = {1, 127, 128, 129, 255, 256, 257, 387, 660};
constexpr int64_t kVocabulary = std::size(kCounts), kBatch = 11, kLength = 200;

// Returns the tokens, each as often as it occurs, in an order without a pattern.
std::vector<double> FrequentTokens() {
  std::vector<double> tokens;
  for (int64_t token = 0; token < kVocabulary; ++token) tokens.insert(tokens.end(), kCounts[token], token);
  EXPECT_EQ(std::ssize(tokens), kBatch * kLength);
  std::vector<double> mixed(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) mixed[i * 1009 % tokens.size()] = tokens[i];  // 1,009 is a prime.
  return mixed;
}

// These sums depend on the order of the additions. Equal bits need the order of t, in segments of 128, whose sums are
// added in their order.
TEST(CudaEmbedding, SumsManyPositionsInAFixedOrder) {
  for (const DType act : {DType::kFloat32, DType::kBFloat16}) {
    for (const int64_t width : {8, 9}) {
      TestMemory memory;
      const EmbeddingBackward op = {.tokens_BS = memory.Values(DType::kInt32, {kBatch, kLength}, FrequentTokens()),
                                    .d_out_TC = memory.Random(act, {kBatch * kLength, width}),
                                    .d_weight_VC = memory.Random(DType::kFloat32, {kVocabulary, width}),
                                    .d_positions_PC = memory.Random(DType::kFloat32, {kLength + 3, width}),
                                    .accumulate = true};
      std::vector<std::byte> image, before = memory.image();
      const absl::Status status = RunOnCuda(memory, op, image);
      ASSERT_TRUE(status.ok()) << status;
      const Tensor tokens = memory.Bind(op.tokens_BS, before.data()), d_out = memory.Bind(op.d_out_TC, before.data());
      std::vector<float> weight(kVocabulary * width), segments(weight.size()), positions((kLength + 3) * width);
      std::vector<int64_t> seen(kVocabulary);
      for (int64_t t = 0; t < kBatch * kLength; ++t) {
        const auto token = static_cast<int64_t>(ElementOf(tokens, t));
        const bool ends = ++seen[token] % 128 == 0 || seen[token] == kCounts[token];
        for (int64_t c = 0; c < width; ++c) {
          const auto value = static_cast<float>(ElementOf(d_out, t * width + c));
          float& segment = segments[token * width + c];
          segment += value;
          if (ends) weight[token * width + c] += std::exchange(segment, 0.0f);
          positions[t % kLength * width + c] += value;
        }
      }
      const auto expect = [&](const Tensor& t, const std::vector<float>& sums) {
        const Tensor was = memory.Bind(t, before.data()), is = memory.Bind(t, image.data());
        for (int64_t i = 0; i < t.elements(); ++i) {
          EXPECT_EQ(ElementOf(is, i), static_cast<float>(ElementOf(was, i)) + sums[i]) << i;
        }
      };
      expect(op.d_weight_VC, weight);
      expect(op.d_positions_PC, positions);
    }
  }
}

}  // namespace
}  // namespace shale::testing
