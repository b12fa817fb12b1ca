// Tests views of tensors, and the conversions between fp32, bfloat16 and split masters.
#include "kernels/tensor.h"

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/element_range.h"

namespace shale {
namespace {

// Returns where the elements of `t` lie, in row-major order, as element offsets from the start of its buffer.
std::vector<int64_t> Places(const Tensor& t) {
  std::vector<int64_t> places;
  for (int64_t i = 0; i < t.elements(); ++i) {
    int64_t rest = i, at = t.where.offset_bytes / SizeOf(t.dtype);
    for (int d = t.rank - 1; d >= 0; --d) {
      at += rest % t.shape[d] * t.strides[d];
      rest /= t.shape[d];
    }
    places.push_back(at);
  }
  return places;
}

TEST(ElementRangeTest, AnIntersectionIsWhatBothHave) {
  using Range = ElementRange;
  EXPECT_EQ(Intersect({2, 7}, {4, 9}), (Range{4, 7}));
  EXPECT_EQ(Intersect({4, 9}, {2, 7}), (Range{4, 7}));
  EXPECT_EQ(Intersect({0, 9}, {3, 5}), (Range{3, 5}));
  // The intersection may be empty, but its size is never negative.
  EXPECT_EQ(Intersect({0, 3}, {3, 5}), (Range{3, 3}));
  EXPECT_EQ(Intersect({0, 3}, {5, 8}), (Range{5, 5}));
  EXPECT_EQ(Intersect({5, 8}, {0, 3}), (Range{5, 5}));
}

TEST(Tensor, AnAbsentOneHasNoElements) {
  const Tensor t;
  EXPECT_FALSE(t.present());
  EXPECT_EQ(t.elements(), 0);
  EXPECT_EQ(t.extent_bytes(), 0);
}

TEST(Tensor, SliceKeepsThePlaceOfItsElements) {
  const Tensor fused = Tensor::Contiguous(DType::kBFloat16, {3, 10});
  const Tensor columns = fused.Slice(1, 4, 2);
  EXPECT_EQ(Places(columns), (std::vector<int64_t>{4, 5, 14, 15, 24, 25}));
  EXPECT_FALSE(columns.contiguous());
  EXPECT_EQ(columns.elements(), 6);
  EXPECT_EQ(columns.extent(), 22);  // Two rows of ten, and two.
  EXPECT_EQ(columns.extent_bytes(), 44);
  EXPECT_EQ(columns.where.offset_bytes, 8);
  EXPECT_TRUE(fused.Slice(0, 1, 2).contiguous());
  EXPECT_TRUE(fused.Slice(0, 1, 1).Slice(1, 3, 4).contiguous());
}

TEST(Tensor, BoundAndSymbolicViewsMoveAlike) {
  std::vector<float> memory(30);
  const Tensor bound = Tensor::Contiguous(DType::kFloat32, {3, 10}, memory.data()).Slice(0, 1, 2).Slice(1, 4, 2);
  EXPECT_EQ(bound.as<float>(), memory.data() + 14);
  EXPECT_EQ(bound.where.offset_bytes, 56);
}

TEST(Tensor, SplitsOfARowAndOfTokensCompose) {
  // [B*S, (H + G) * D] -> the G part as [B, S, G, D].
  const Tensor fused = Tensor::Contiguous(DType::kFloat32, {4, 6});
  const Tensor view = fused.Slice(1, 2, 4).SplitLast(2, 2).SplitFirst(2);
  ASSERT_EQ(view.rank, 4);
  EXPECT_EQ(view.ToString(), "f32[2, 2, 2, 2]");
  EXPECT_EQ(Places(view), (std::vector<int64_t>{2, 3, 4, 5, 8, 9, 10, 11, 14, 15, 16, 17, 20, 21, 22, 23}));
}

TEST(Tensor, ReshapeKeepsTheBuffer) {
  Tensor t = Tensor::Contiguous(DType::kInt32, {4, 6});
  t.where = {.symbol = 7, .offset_bytes = 64, .shard_stride_bytes = 256};
  const Tensor flat = t.Reshape({24});
  EXPECT_EQ(flat.where.symbol, 7);
  EXPECT_EQ(flat.where.offset_bytes, 64);
  EXPECT_EQ(flat.where.shard_stride_bytes, 256);
  EXPECT_EQ(Places(flat), Places(t));
}

TEST(TensorDeathTest, RefusesWhatDoesNotFit) {
  const Tensor t = Tensor::Contiguous(DType::kFloat32, {4, 6});
  EXPECT_DEATH(t.Slice(1, 4, 3), "check failed");
  EXPECT_DEATH(t.SplitLast(4, 2), "check failed");
  EXPECT_DEATH(t.Reshape({5, 5}), "check failed");
  EXPECT_DEATH(t.Slice(1, 0, 3).Reshape({12}), "check failed");
}

TEST(BFloat16, RoundsToNearestTiesToEven) {
  const auto round = [](uint32_t bits) { return RoundToBFloat16(std::bit_cast<float>(bits)).bits; };
  EXPECT_EQ(round(0x3f800000), 0x3f80);
  EXPECT_EQ(round(0x3f807fff), 0x3f80);
  EXPECT_EQ(round(0x3f808000), 0x3f80);  // A tie goes to the even one, below...
  EXPECT_EQ(round(0x3f818000), 0x3f82);  // ... or above.
  EXPECT_EQ(round(0x3f808001), 0x3f81);
  EXPECT_EQ(round(0x7f7fffff), 0x7f80);  // The largest fp32 is nearest to infinity.
  EXPECT_EQ(round(0xff800000), 0xff80);
  EXPECT_TRUE(std::isnan(ToFloat(RoundToBFloat16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(std::isnan(ToFloat(RoundToBFloat16(std::bit_cast<float>(0x7f800001u)))));
}

// The compiler converts as IEEE 754 says.
TEST(Float16, ConvertsAsTheCompilerDoes) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float got = ToFloat(Float16{half});
    if ((bits & 0x7fff) > 0x7c00) {
      ASSERT_EQ(std::bit_cast<uint32_t>(got), (bits & 0x8000) << 16 | 0x7fc00000 | (bits & 0x3ff) << 13);
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(got),
                std::bit_cast<uint32_t>(static_cast<float>(std::bit_cast<_Float16>(half))));
    }
    ASSERT_EQ(RoundToFloat16(got).bits, std::isnan(got) ? bits | 0x200 : bits);
    for (const uint32_t lower : {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x2000u, 0x3000u, 0x8000u, 0xf000u, 0xffffu}) {
      const float value = std::bit_cast<float>(bits << 16 | lower);
      const uint16_t rounded = RoundToFloat16(value).bits;
      if (std::isnan(value)) {
        ASSERT_GT(rounded & 0x7fff, 0x7dff) << "a quiet NaN";
      } else {
        ASSERT_EQ(rounded, std::bit_cast<uint16_t>(static_cast<_Float16>(value))) << std::hex << (bits << 16 | lower);
      }
    }
  }
  EXPECT_EQ(RoundToFloat16(65519.99f).bits, 0x7bff);  // 65504
  EXPECT_EQ(RoundToFloat16(65520).bits, 0x7c00);      // Infinity.
  EXPECT_EQ(RoundToFloat16(0x1p-25f).bits, 0);        // A tie between 0 and the least subnormal.
}

TEST(SplitMaster, HoldsEveryFiniteMasterExactly) {
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const float master = std::bit_cast<float>(upper << 16 | lower);
      if (!std::isfinite(master)) continue;
      const BFloat16 weight = RoundMaster(master);
      const float joined = JoinMaster(weight, MasterLowBits(master, weight));
      ASSERT_EQ(std::bit_cast<uint32_t>(joined), upper << 16 | lower);
      // No other bf16 is nearer, unless the master rounds to infinity.
      if (std::isfinite(ToFloat(weight))) {
        ASSERT_LE(std::abs(static_cast<double>(ToFloat(weight)) - master),
                  std::abs(static_cast<double>(ToFloat(RoundToBFloat16(master))) - master));
      }
    }
  }
}

TEST(SplitMaster, RoundsHalfAwayFromZero) {
  EXPECT_EQ(RoundMaster(std::bit_cast<float>(0x3f808000u)).bits, 0x3f81);
  EXPECT_EQ(RoundMaster(std::bit_cast<float>(0xbf808000u)).bits, 0xbf81);
}

TEST(SplitMaster, ANaNStaysOne) {
  for (const uint32_t bits : {0x7fc00000u, 0x7f800001u, 0xffffffffu}) {
    const float nan = std::bit_cast<float>(bits);
    const BFloat16 weight = RoundMaster(nan);
    EXPECT_TRUE(std::isnan(ToFloat(weight)));
    EXPECT_TRUE(std::isnan(JoinMaster(weight, MasterLowBits(nan, weight))));
  }
}

}  // namespace
}  // namespace shale
