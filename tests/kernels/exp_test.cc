// Compares the exponential of softmax, sigmoid and cross-entropy, and the tanh of soft caps, with fp64, for every
// instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/kernels/exp_test.cc"
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

void ExpAll(const float* x, float* y, int64_t count) {
  ForVectors(count, [&](int64_t i, auto lanes) HWY_ATTR { lanes.Store(Exp(lanes.Load(x + i)), y + i); });
}
void TanhAll(const float* x, float* y, int64_t count) {
  ForVectors(count, [&](int64_t i, auto lanes) HWY_ATTR { lanes.Store(Tanh(lanes.Load(x + i)), y + i); });
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shale::cpu {
namespace {

HWY_EXPORT(ExpAll);
HWY_EXPORT(TanhAll);

class ExpTest : public ::testing::Test {
 protected:
  ~ExpTest() override { hwy::GetChosenTarget().Update(hwy::SupportedTargets()); }

  static std::vector<float> ExpOf(const std::vector<float>& x) {
    std::vector<float> y(x.size());
    HWY_DYNAMIC_DISPATCH(ExpAll)(x.data(), y.data(), static_cast<int64_t>(x.size()));
    return y;
  }
};

TEST_F(ExpTest, IsWithinOneAndAHalfUnitsInTheLastPlace) {
  // Arguments whose results are not subnormal: evenly spaced, and around each midpoint between powers of 2^(1/16),
  // where the parts of the result change.
  std::vector<float> x;
  for (int i = 0; i < 1'000'000; ++i) x.push_back(-87.3f + static_cast<float>(i) * 175.2e-6f);
  for (int i = -2000; i <= 2000; ++i) {
    const float middle = static_cast<float>((i + 0.5) * std::log(2.0) / 16);
    for (const float y : {std::nextafter(middle, -100.0f), middle, std::nextafter(middle, 100.0f)}) x.push_back(y);
  }
  for (float tiny = 1; tiny > 1e-30f; tiny /= 7) x.insert(x.end(), {tiny, -tiny});
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::GetChosenTarget().Update(target);
    const std::vector<float> y = ExpOf(x);
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = std::exp(static_cast<double>(x[i]));
      const double unit = std::ldexp(1.0, std::ilogb(want) - 23);
      ASSERT_LE(std::abs(y[i] - want), 1.5 * unit) << x[i];
    }
  }
}

TEST_F(ExpTest, KeepsNaNsAndEndsInZeroAndInfinity) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr double kLeastNormal = std::numeric_limits<float>::min();
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::GetChosenTarget().Update(target);
    for (const float x : {-kInfinity, -1e38f, -1000.0f, -110.0f, -104.0f}) EXPECT_EQ(ExpOf({x})[0], 0) << x;
    // The result may be subnormal or 0.
    for (float x = -104; x < -87.34f; x += 0.01f) {
      const double want = std::exp(static_cast<double>(x)), got = ExpOf({x})[0];
      EXPECT_TRUE(got == 0 || std::abs(got - want) <= 0x1p-149) << x << " gives " << got;
      EXPECT_LT(got, kLeastNormal);
    }
    for (float x = 88; x < 88.8f; x += 0.01f) {
      const double want = std::exp(static_cast<double>(x)), got = ExpOf({x})[0];
      EXPECT_TRUE(got == kInfinity || std::abs(got - want) <= want * 0x1.8p-23) << x << " gives " << got;
    }
    EXPECT_EQ(ExpOf({88.8f})[0], kInfinity);
    EXPECT_EQ(ExpOf({0.0f})[0], 1);
    EXPECT_TRUE(std::isnan(ExpOf({std::nanf("")})[0]));
  }
}

TEST_F(ExpTest, TanhIsWithinThreeUnitsInTheLastPlace) {
  std::vector<float> x;
  for (int i = -100'000; i <= 100'000; ++i) x.push_back(static_cast<float>(i) * 1e-4f);
  for (float tiny = 1; tiny > 1e-30f; tiny /= 7) x.insert(x.end(), {tiny, -tiny, 1 / tiny, -1 / tiny});
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::GetChosenTarget().Update(target);
    std::vector<float> y(x.size());
    HWY_DYNAMIC_DISPATCH(TanhAll)(x.data(), y.data(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = std::tanh(static_cast<double>(x[i]));
      if (want == 0) {
        ASSERT_EQ(y[i], 0);
        continue;
      }
      ASSERT_LE(std::abs(y[i] - want), 3 * std::ldexp(1.0, std::ilogb(want) - 23)) << x[i];
    }
    const float nan = std::numeric_limits<float>::quiet_NaN();
    HWY_DYNAMIC_DISPATCH(TanhAll)(&nan, y.data(), 1);
    EXPECT_TRUE(std::isnan(y[0]));
  }
}

}  // namespace
}  // namespace shale::cpu
#endif
