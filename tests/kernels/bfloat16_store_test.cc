// Kernels store bf16 as a vector, as a pair of vectors, or as the last part of a row. They round it in software or,
// with AVX512-BF16, in hardware. All ways give the same bits, except that hardware turns subnormals into zeros.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/kernels/bfloat16_store_test.cc"
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <type_traits>
#include <vector>

#include "gtest/gtest.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/bfloat16_instructions.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

template <class T>
void StoreByPairs(const float* from, BFloat16* to, int64_t count) {
  const int64_t step = 2 * static_cast<int64_t>(hn::Lanes(Floats()));
  T* out = static_cast<T*>(to);
  int64_t i = 0;
  for (; i + step <= count; i += step) {
    // StorePair takes the even elements in one vector and the odd ones in the other.
    float even_odd[2 * HWY_MAX_BYTES / sizeof(float)];
    for (int64_t j = 0; j < step; ++j) even_odd[j % 2 * step / 2 + j / 2] = from[i + j];
    StorePair({Load(even_odd), Load(even_odd + step / 2)}, out + i);
  }
  ForVectors(count - i, [&](int64_t j, auto lanes) HWY_ATTR { lanes.Store(lanes.Load(from + i + j), out + i + j); });
}
template <class T>
void StoreByVectors(const float* from, BFloat16* to, int64_t count) {
  T* out = static_cast<T*>(to);
  ForVectors(count, [&](int64_t i, auto lanes) HWY_ATTR { lanes.Store(lanes.Load(from + i), out + i); });
}

void StoreAll(bool pairs, const float* from, BFloat16* to, int64_t count) {
  ForActivations(DType::kBFloat16, [&](auto element) HWY_ATTR {
    using T = decltype(element);
    if constexpr (std::is_base_of_v<BFloat16, T>) {
      pairs ? StoreByPairs<T>(from, to, count) : StoreByVectors<T>(from, to, count);
    }
  });
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shale::cpu {
namespace {

HWY_EXPORT(StoreAll);

// Returns all upper halves, infinities, NaNs and subnormals among them, each with lower halves around the tie, and then
// random bits.
std::vector<float> Values() {
  std::vector<float> values;
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      values.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  std::mt19937 random(1);
  while (values.size() % 64 != 7 || values.size() < 500'000) {
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  }
  return values;
}

// Expects that stores round each value. Without `keeps_subnormals`, subnormals must become zeros of their sign.
void ExpectStoresRounded(bool pairs, const std::vector<float>& values, bool keeps_subnormals) {
  std::vector<BFloat16> got(values.size());
  HWY_DYNAMIC_DISPATCH(StoreAll)(pairs, values.data(), got.data(), static_cast<int64_t>(values.size()));
  for (size_t i = 0; i < values.size(); ++i) {
    const bool zero = std::fpclassify(values[i]) == FP_SUBNORMAL && !keeps_subnormals;
    const uint16_t want = RoundToBFloat16(zero ? std::copysign(0.0f, values[i]) : values[i]).bits;
    ASSERT_EQ(got[i].bits, want) << std::hex << std::bit_cast<uint32_t>(values[i]);
    ASSERT_EQ(std::isnan(ToFloat(got[i])), std::isnan(values[i])) << std::hex << std::bit_cast<uint32_t>(values[i]);
  }
}

class BFloat16Store : public ::testing::TestWithParam<bool> {
 protected:
  ~BFloat16Store() override {
    ForbidInstructionsAbove(InstructionSet::kAmx);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};
INSTANTIATE_TEST_SUITE_P(Ways, BFloat16Store, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Pairs" : "Vectors"; });

TEST_P(BFloat16Store, SoftwareRoundsAsRoundToBFloat16) {
  const std::vector<float> values = Values();
  ForbidInstructionsAbove(InstructionSet::kAvx512);
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::GetChosenTarget().Update(target);
    ExpectStoresRounded(GetParam(), values, /*keeps_subnormals=*/true);
  }
}

TEST_P(BFloat16Store, HardwareDiffersInSubnormalsAlone) {
  if (!MayUseBFloat16Instructions()) GTEST_SKIP() << "this processor has no AVX512-BF16";
  const std::vector<float> values = Values();
  ExpectStoresRounded(GetParam(), values, /*keeps_subnormals=*/false);
}

}  // namespace
}  // namespace shale::cpu
#endif
