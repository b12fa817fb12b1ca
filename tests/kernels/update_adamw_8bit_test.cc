// Tests AdamW8Bit. The conformance cases compare weights and scales with the reference; the other tests compare codes.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "gtest/gtest.h"
#include "kernels/dynamic_map.h"
#include "kernels/step_scalars.h"
#include "tests/kernels/op_conformance.h"
#include "tests/kernels/test_backends.h"
#include "tests/kernels/update_cases.h"
#include "tests/kernels/update_goldens.h"
#include "tests/kernels/update_ops.h"

namespace shale::testing {
namespace {

// As for AdamW, but m and v are rounded once more, when they are widened.
constexpr UpdateTolerances kUpdateAdamw8bitTolerances = {
    .state = {.absolute = 5 * kUnit32}, .master = {.absolute = 4 * kRate * 18 * kUnit32 + 2 * kUnit32}};

INSTANTIATE_TEST_SUITE_P(AdamW8Bit, OpConformance,
                         ::testing::ValuesIn(UpdateCases(AdamW8BitRule{.weight_decay = 0.5f},
                                                         kUpdateAdamw8bitTolerances)),
                         CaseName);

TEST(DynamicMap, HasTheBitsOfBitsandbytes) {
  for (int code = 0; code < 256; ++code) {
    EXPECT_EQ(std::bit_cast<uint32_t>(SignedMap::ValueOf(code)), kSignedMap[code]) << code;
    EXPECT_EQ(std::bit_cast<uint32_t>(UnsignedMap::ValueOf(code)), kUnsignedMap[code]) << code;
  }
}

TEST(DynamicMap, AscendsWithBoundariesBetween) {
  for (int level = 0; level < SignedMap::kLevels - 1; ++level) {
    EXPECT_LT(SignedMap::At(level), SignedMap::BoundaryAbove(level));
    EXPECT_LT(SignedMap::BoundaryAbove(level), SignedMap::At(level + 1));
  }
  for (int level = 0; level < UnsignedMap::kLevels - 1; ++level) {
    EXPECT_LT(UnsignedMap::At(level), UnsignedMap::BoundaryAbove(level));
    EXPECT_LT(UnsignedMap::BoundaryAbove(level), UnsignedMap::At(level + 1));
  }
}

// Returns the level to which x is rounded, found by comparing x with every boundary.
template <class Map>
int LevelOf(double x) {
  int level = 0;
  while (level < Map::kLevels - 1 && x > Map::BoundaryAbove(level)) ++level;
  return x > 0 ? std::max(level, Map::kLowestOfPositive) : level;
}

// Expects each code to be that of a ratio that differs from the exact one by rounding only. `error` bounds the rounding
// of a value. So a code is exact, or next to the exact one if the ratio lies within rounding of their boundary.
template <class Map>
void ExpectCodes(const Tensor& codes, const std::vector<double>& values, double error) {
  for (int64_t begin = 0; begin < codes.dim(0); begin += kQuantizedBlock) {
    const int64_t end = std::min(begin + kQuantizedBlock, codes.dim(0));
    double scale = 0;
    for (int64_t i = begin; i < end; ++i) scale = std::max(scale, std::abs(values[i]));
    // The value and the scale are off by `error` each, and the quotient, at most 1, is rounded.
    const double slack = 2 * error / scale + kUnit32;
    for (int64_t i = begin; i < end; ++i) {
      const double ratio = std::abs(values[i]) / scale;
      const int low = LevelOf<Map>(ratio - slack), high = LevelOf<Map>(ratio + slack);
      ASSERT_LE(high - low, 1) << "slack spans more than a boundary";
      const int code = static_cast<int>(ElementOf(codes, i));
      const bool negative = values[i] < 0;
      const int a = Map::CodeOf(low, negative), b = Map::CodeOf(high, negative);
      ASSERT_TRUE(code == a || code == b)
          << i << ": " << code << " for " << values[i] << ", wanted " << a << " or " << b;
    }
  }
}

// Every backend stores the codes of the new m and v, whatever the size of the last block and the form of the masters.
TEST(AdamW8Bit, StoresTheNearestCodes) {
  const AdamW8BitRule rule;
  for (const int64_t n : {1, 37, 255, 256, 257, 5000}) {
    for (const Masters form : {Masters::kWeight, Masters::kSplit}) {
      TestMemory memory;
      const Update op = MakeUpdate(memory, rule, form, RandomMasters(n));
      std::vector<std::byte> before = memory.image();
      std::vector<double> ms, vs;
      const auto old = [&](const char* name, int64_t i) { return ElementOf(StateOf(op, name, memory, before), i); };
      for (int64_t i = 0; i < n; ++i) {
        const double g = ElementOf(memory.Bind(op.gradient_P, before.data()), i) * 0.75;
        const int64_t block = i / kQuantizedBlock;
        const double m = SignedMap::ValueOf(static_cast<int>(old("m", i))) * old("m_scale", block);
        const double v = UnsignedMap::ValueOf(static_cast<int>(old("v", i))) * old("v_scale", block);
        ms.push_back(m + (1 - static_cast<double>(rule.beta1)) * (g - m));
        vs.push_back(rule.beta2 * v + (1 - static_cast<double>(rule.beta2)) * g * g);
      }
      for (const TestBackend& backend : TestBackends()) {
        SCOPED_TRACE(backend.name + " " + Name(form) + " " + std::to_string(n));
        std::vector<std::byte> image = RunOnBackend(backend.name, memory, op);
        // m has roundings of 0.1 (widened), a tenth of 0.75 and of 0.85, and 0.2. v has those of 0.2 twice, 0.04 twice,
        // and 0.25.
        ExpectCodes<SignedMap>(StateOf(op, "m", memory, image), ms, 0.5 * kUnit32);
        ExpectCodes<UnsignedMap>(StateOf(op, "v", memory, image), vs, 0.8 * kUnit32);
      }
    }
  }
}

// An update that sets m to the gradient and v to its square, to the bit: it has zero states, and betas of 0.
struct Exact {
  TestMemory memory;
  Update op;

  explicit Exact(const std::vector<double>& gradients) {
    const int64_t n = std::ssize(gradients);
    op = MakeUpdate(memory, AdamW8BitRule{.beta1 = 0, .beta2 = 0}, Masters::kWeight, std::vector<double>(n));
    op.update_5 = memory.Values(DType::kFloat32, {kUpdateSize}, {kRate, 1, 1, 1, 0});
    op.gradient_P = memory.Values(DType::kFloat32, {n}, gradients);
    for (size_t i = 0; i < StatesOf(op.rule).size(); ++i) {
      const int64_t size = op.states[i].dim(0);
      op.states[i] = memory.Values(op.states[i].dtype, {size}, std::vector<double>(size));
    }
  }
};

// Returns blocks of a 1 and 255 numbers. The 1 makes the scale 1, so that numbers are their own ratios.
std::vector<double> WithScaleOne(const std::vector<float>& numbers) {
  std::vector<double> values;
  for (const float x : numbers) {
    if (values.size() % kQuantizedBlock == 0) values.push_back(1);
    values.push_back(x);
  }
  return values;
}

// Entries of the map are kept, numbers on a boundary go to the entry nearer to 0, and the next larger fp32 number goes
// to the other entry. A negative m stays negative, even where 0 is nearer.
TEST(AdamW8Bit, RoundsMToTheNearestEntryOfItsSign) {
  std::vector<float> numbers;
  for (int level = 0; level < SignedMap::kLevels; ++level) {
    numbers.push_back(SignedMap::At(level));
    if (level == SignedMap::kLevels - 1) break;
    const float boundary = SignedMap::BoundaryAbove(level);
    for (const float x : {boundary, std::nextafter(boundary, 0.0f), std::nextafter(boundary, 1.0f)}) {
      numbers.push_back(x);
    }
  }
  for (const float tiny : {1e-12f, 1e-30f, std::numeric_limits<float>::denorm_min()}) numbers.push_back(tiny);
  const size_t positive = numbers.size();
  for (size_t i = 0; i < positive; ++i) numbers.push_back(-numbers[i]);
  const std::vector<double> values = WithScaleOne(numbers);
  const Exact exact(values);
  for (const TestBackend& backend : TestBackends()) {
    SCOPED_TRACE(backend.name);
    std::vector<std::byte> image = RunOnBackend(backend.name, exact.memory, exact.op);
    EXPECT_EQ(ElementOf(StateOf(exact.op, "m_scale", exact.memory, image), 0), 1);
    const Tensor codes = StateOf(exact.op, "m", exact.memory, image);
    for (int64_t i = 0; i < codes.dim(0); ++i) {
      const int want = SignedMap::CodeOf(LevelOf<SignedMap>(std::abs(values[i])), values[i] < 0);
      ASSERT_EQ(ElementOf(codes, i), want) << values[i];
      if (values[i] < 0) {
        ASSERT_LT(SignedMap::ValueOf(want), 0);
      }
    }
  }
}

// Tries 0, and squares from 1e-12 to 1, which reach every level. Only 0 reaches the level of 0. The reference squares
// in fp64, so its codes may differ by one.
TEST(AdamW8Bit, RoundsVToTheNearestEntry) {
  std::vector<float> numbers = {0};
  for (float x = 1e-6f; x < 1; x *= 1.0007f) numbers.push_back(x);
  const std::vector<double> values = WithScaleOne(numbers);
  const Exact exact(values);
  for (const TestBackend& backend : TestBackends()) {
    SCOPED_TRACE(backend.name);
    std::vector<std::byte> image = RunOnBackend(backend.name, exact.memory, exact.op);
    const Tensor codes = StateOf(exact.op, "v", exact.memory, image);
    std::vector<bool> met(256);
    for (int64_t i = 0; i < codes.dim(0); ++i) {
      const float square = static_cast<float>(values[i]) * static_cast<float>(values[i]);
      const int want = LevelOf<UnsignedMap>(square), code = static_cast<int>(ElementOf(codes, i));
      met[code] = true;
      if (backend.family == "reference") {
        ASSERT_LE(std::abs(code - want), 1) << values[i];
      } else {
        ASSERT_EQ(code, want) << values[i];
      }
    }
    EXPECT_EQ(std::count(met.begin(), met.end(), false), 0);
  }
}

// A block without gradients stays zero: its scale is 0, and its codes are those of 0.
TEST(AdamW8Bit, ZerosHaveScaleZero) {
  const Exact exact(std::vector<double>(300));
  for (const TestBackend& backend : TestBackends()) {
    SCOPED_TRACE(backend.name);
    std::vector<std::byte> image = RunOnBackend(backend.name, exact.memory, exact.op);
    for (int64_t i = 0; i < 300; ++i) {
      ASSERT_EQ(ElementOf(StateOf(exact.op, "m", exact.memory, image), i), SignedMap::kZeroCode);
      ASSERT_EQ(ElementOf(StateOf(exact.op, "v", exact.memory, image), i), UnsignedMap::kZeroCode);
      ASSERT_EQ(ElementOf(exact.memory.Bind(exact.op.weight_P, image.data()), i), 0);
    }
    for (const char* name : {"m_scale", "v_scale"}) {
      EXPECT_EQ(ElementOf(StateOf(exact.op, name, exact.memory, image), 0), 0);
      EXPECT_EQ(ElementOf(StateOf(exact.op, name, exact.memory, image), 1), 0);
    }
  }
}

// The scale of a block that holds a NaN is a NaN, and so are all its values. Other blocks are not affected.
TEST(AdamW8Bit, ANaNTakesItsBlockWithIt) {
  std::vector<double> gradients(600, 0.5);
  gradients[300] = std::numeric_limits<double>::quiet_NaN();
  gradients[301] = 2;
  const Exact exact(gradients);
  for (const TestBackend& backend : TestBackends()) {
    SCOPED_TRACE(backend.name);
    std::vector<std::byte> image = RunOnBackend(backend.name, exact.memory, exact.op);
    for (const char* name : {"m_scale", "v_scale"}) {
      const Tensor scales = StateOf(exact.op, name, exact.memory, image);
      EXPECT_EQ(ElementOf(scales, 0), name[0] == 'm' ? 0.5 : 0.25);
      EXPECT_TRUE(std::isnan(ElementOf(scales, 1)));
      EXPECT_EQ(ElementOf(scales, 2), name[0] == 'm' ? 0.5 : 0.25);
    }
  }
}

// The new weight is computed from m and v before they are stored, so errors of storage show only in the next step.
TEST(AdamW8Bit, WeightsAreThoseOfAdamWUntilTheNextStep) {
  constexpr int64_t kSize = 1000;
  TestMemory memory;
  const Update quantized = MakeUpdate(memory, AdamW8BitRule(), Masters::kWeight, RandomMasters(kSize));
  std::vector<std::byte> before = memory.image();
  Update wide = quantized;
  wide.rule = AdamWRule();
  std::vector<double> ms, vs;
  for (int64_t i = 0; i < kSize; ++i) {
    const int64_t block = i / kQuantizedBlock;
    const auto old = [&](const char* name, int64_t at) {
      return static_cast<float>(ElementOf(StateOf(quantized, name, memory, before), at));
    };
    ms.push_back(SignedMap::ValueOf(static_cast<int>(old("m", i))) * old("m_scale", block));
    vs.push_back(UnsignedMap::ValueOf(static_cast<int>(old("v", i))) * old("v_scale", block));
  }
  wide.states = {memory.Values(DType::kFloat32, {kSize}, ms), memory.Values(DType::kFloat32, {kSize}, vs)};
  for (const TestBackend& backend : TestBackends()) {
    if (backend.family == "reference") continue;  // The reference widens in fp64.
    SCOPED_TRACE(backend.name);
    std::vector<std::byte> got = RunOnBackend(backend.name, memory, quantized);
    std::vector<std::byte> want = RunOnBackend(backend.name, memory, wide);
    EXPECT_EQ(MastersOf(quantized, memory, got), MastersOf(wide, memory, want));
  }
}

// No ratio of the goldens lies so near a boundary that rounding could decide its code. In a step, a scale (below 1) has
// five roundings. The change of a weight has some eighteen, and is below 4 rate, because |m| < 1 and sqrt(v) > 0.05
// before their corrections. The weight itself has three.
TEST(AdamW8Bit, StepsAsBitsandbytesStoresItsStates) {
  constexpr double kWeight = (4 * 4 * kRate * 18 + 4 * 3 * 1.2) * kUnit32, kScale = 4 * 5 * kUnit32;
  const AdamW8BitRule rule;
  TakeGoldenSteps(rule, {rule.beta1, rule.beta2}, kAdamW8BitSeries, [&](const Update& op, auto& memory, auto& image) {
    ExpectWords(memory.Bind(op.weight_P, image.data()), kAdamW8BitWeights, kWeight);
    ExpectWords(StateOf(op, "m_scale", memory, image), kAdamW8BitMScales, kScale);
    ExpectWords(StateOf(op, "v_scale", memory, image), kAdamW8BitVScales, kScale);
    for (int64_t i = 0; i < kGoldenSize; ++i) {
      ASSERT_EQ(ElementOf(StateOf(op, "m", memory, image), i), kAdamW8BitM[i]) << i;
      ASSERT_EQ(ElementOf(StateOf(op, "v", memory, image), i), kAdamW8BitV[i]) << i;
    }
  });
}

}  // namespace
}  // namespace shale::testing
