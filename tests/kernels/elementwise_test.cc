// Tests sums, copies, additions and column sums.
#include <bit>
#include <cmath>
#include <set>

#include "gtest/gtest.h"
#include "kernels/counter_random.h"
#include "kernels/ops/flat.h"
#include "kernels/ops/matmul.h"
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/gradient_check.h"
#include "tests/kernels/op_conformance.h"
#include "tests/kernels/test_backends.h"

namespace shale::testing {
namespace {

// Returns sizes around the 16 lanes and the blocks of a sum, and 0.
const std::vector<int64_t>& FlatSizes() {
  static const auto& sizes = *new std::vector<int64_t>{0, 1, 7, 15, 16, 17, 1009, 16384, 16385, 33001};
  return sizes;
}

std::shared_ptr<const std::vector<ElementRange>> Ranges(std::vector<ElementRange> ranges) {
  return std::make_shared<const std::vector<ElementRange>>(std::move(ranges));
}

template <class OpType>
OpCase SumCase(int64_t n, bool accumulate, DType dtype = DType::kFloat32) {
  OpCase c{.name = std::string(OpType::kName.data(), OpType::kName.size()) + "_" + NameOf(dtype) + "_" +
                   std::to_string(n) + (accumulate ? "_accumulate" : "")};
  OpType op;
  op.x_N = c.memory.Random(dtype, {n});
  op.total_1 = accumulate ? c.memory.Random(DType::kFloat64, {1}) : c.memory.Output(DType::kFloat64, {1});
  op.accumulate = accumulate;
  c.op = op;
  // There are n additions in fp64, and the sum of magnitudes is below n + 1.
  const double terms = static_cast<double>(n) + 1;
  c.tolerances["total"] = {.absolute = terms * terms * 0x1p-53};
  return c;
}

OpCase CopyCase(DType from, DType to, int64_t n) {
  OpCase c{.name = "Copy_" + NameOf(from) + "_" + NameOf(to) + "_" + std::to_string(n)};
  const bool integer = !IsComputeDType(from) && from != DType::kFloat64;
  c.op = Copy{.from = integer ? c.memory.RandomIntegers(from, {n}, -1000, 1000) : c.memory.Random(from, {n}),
              .to = c.memory.Output(to, {n})};
  return c;
}

enum class AddOnto { kNew, kA, kB, kDouble };

OpCase AddCase(DType act, int64_t n, AddOnto onto) {
  OpCase c{.name = "Add_" + NameOf(act) + "_" + std::to_string(n) + "_" + std::to_string(static_cast<int>(onto))};
  const Tensor a = c.memory.Random(act, {3, n});
  const Tensor b = onto == AddOnto::kDouble ? a : c.memory.Random(act, {3, n});
  const Tensor out = onto == AddOnto::kA ? a : onto == AddOnto::kB ? b : c.memory.Output(act, {3, n});
  c.op = Add{.a = a, .b = b, .out = out};
  return c;  // One fp32 addition, rounded once: the same bits everywhere.
}

OpCase AccumulateCase(int64_t n, bool accumulate) {
  OpCase c{.name = "Accumulate_" + std::to_string(n) + (accumulate ? "_accumulate" : "")};
  c.op =
      Accumulate{.x_N = c.memory.Random(DType::kFloat32, {n}),
                 .total_N = accumulate ? c.memory.Random(DType::kFloat32, {n}) : c.memory.Output(DType::kFloat32, {n}),
                 .accumulate = accumulate};
  return c;
}

// Adds to a bf16 total, which is rounded by random bits that begin at element 40 of the group.
OpCase RoundedAccumulateCase(int64_t n, bool accumulate) {
  OpCase c{.name = "Accumulate_bf16_" + std::to_string(n) + (accumulate ? "_accumulate" : "")};
  const DType bf16 = DType::kBFloat16;
  c.op = Accumulate{.x_N = c.memory.Random(DType::kFloat32, {n}),
                    .total_N = accumulate ? c.memory.Random(bf16, {n}) : c.memory.Output(bf16, {n}),
                    .accumulate = accumulate,
                    .update_count_1 = c.memory.RandomIntegers(DType::kInt64, {1}, 0, 1000),
                    .micro_batch_1 = accumulate ? c.memory.RandomIntegers(DType::kInt64, {1}, 1, 1000) : Tensor(),
                    .shard_begin = 40,
                    .seed = 0x123456789abcdef,
                    .group = 3,
                    .stream = GradientStream(1)};
  return c;  // One fp32 addition, rounded once by given bits: the same bits everywhere.
}

// One row, or several of very different size, whose sum depends on the order.
OpCase SumRowsCase(int64_t rows, int64_t n, bool accumulate) {
  OpCase c{.name = "SumRows_" + std::to_string(rows) + "x" + std::to_string(n) + (accumulate ? "_accumulate" : "")};
  std::vector<double> values;
  for (int64_t i = 0; i < rows * n; ++i) {
    values.push_back((i % 7 - 3) * std::exp2(static_cast<double>(i * 37 % 41) - 20));
  }
  c.op = SumRows{.x_WN = c.memory.Values(DType::kBFloat16, {rows, n}, values),
                 .total_N = accumulate ? c.memory.Random(DType::kFloat32, {n}) : c.memory.Output(DType::kFloat32, {n}),
                 .accumulate = accumulate};
  return c;  // Additions in fp32 in a given order: the same bits everywhere.
}

OpCase BiasBackwardCase(DType act, int64_t rows, int64_t width, bool strided, bool accumulate) {
  OpCase c{.name = "BiasBackward_" + NameOf(act) + "_" + std::to_string(rows) + "x" + std::to_string(width) +
                   (strided ? "_strided" : "") + (accumulate ? "_accumulate" : "")};
  BiasBackward op;
  op.d_out_TN = c.memory.Random(act, {rows, width + (strided ? 9 : 0)});
  if (strided) op.d_out_TN = op.d_out_TN.Slice(1, 4, width);
  op.d_bias_N = accumulate ? c.memory.Random(DType::kFloat32, {width}) : c.memory.Output(DType::kFloat32, {width});
  op.accumulate = accumulate;
  c.op = op;
  const double terms = static_cast<double>(rows) + 1;
  c.tolerances["d_bias"] = {.absolute = terms * terms * kUnit32};
  return c;
}

OpCase ZeroRangesCase(DType dtype, int64_t n, std::vector<ElementRange> ranges) {
  OpCase c{.name = "ZeroRanges_" + NameOf(dtype) + "_" + std::to_string(n) + "_" + std::to_string(ranges.size())};
  c.op = ZeroRanges{.x_N = c.memory.Random(dtype, {n}), .ranges = Ranges(std::move(ranges))};
  return c;
}

std::vector<OpCase> ElementwiseCases() {
  std::vector<OpCase> cases;
  for (const int64_t n : FlatSizes()) {
    for (const bool accumulate : {false, true}) {
      cases.push_back(SumCase<Sum>(n, accumulate));
      cases.push_back(SumCase<SumSquares>(n, accumulate));
      cases.push_back(SumCase<SumSquares>(n, accumulate, DType::kBFloat16));
      cases.push_back(SumCase<SumSquares>(n, accumulate, DType::kFloat16));
      cases.push_back(AccumulateCase(n, accumulate));
      cases.push_back(RoundedAccumulateCase(n, accumulate));
      for (const int64_t rows : {1, 3}) cases.push_back(SumRowsCase(rows, n, accumulate));
    }
    for (const DType from : {DType::kFloat32, DType::kBFloat16}) {
      for (const DType to : {DType::kFloat32, DType::kBFloat16}) cases.push_back(CopyCase(from, to, n));
    }
    cases.push_back(CopyCase(DType::kFloat32, DType::kFloat16, n));
    cases.push_back(CopyCase(DType::kFloat16, DType::kFloat32, n));
    if (n == 0) continue;
    for (const DType act : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      for (const AddOnto onto : {AddOnto::kNew, AddOnto::kA, AddOnto::kB, AddOnto::kDouble}) {
        cases.push_back(AddCase(act, n, onto));
      }
    }
  }
  for (const DType dtype : {DType::kUInt8, DType::kInt16, DType::kInt32, DType::kInt64, DType::kFloat64}) {
    cases.push_back(CopyCase(dtype, dtype, 33));
  }
  // The CPU copies more than 1 MiB past its caches, in blocks.
  constexpr int64_t kLarge = (1 << 18) + 77;
  cases.push_back(CopyCase(DType::kFloat32, DType::kFloat32, kLarge));
  cases.push_back(CopyCase(DType::kBFloat16, DType::kBFloat16, 2 * kLarge + 1));
  cases.push_back(AccumulateCase(kLarge, false));
  for (const DType act : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    cases.push_back(BiasBackwardCase(act, 1, 1, false, false));
    cases.push_back(BiasBackwardCase(act, 3, 7, false, true));
    cases.push_back(BiasBackwardCase(act, 37, 16, true, false));
    cases.push_back(BiasBackwardCase(act, 130, 33, true, true));
    cases.push_back(BiasBackwardCase(act, 1100, 5, false, false));
    cases.push_back(BiasBackwardCase(act, 20, 1031, false, false));
    cases.push_back(ZeroRangesCase(act, 40, {}));
    cases.push_back(ZeroRangesCase(act, 40, {{0, 1}, {3, 3}, {5, 17}, {39, 40}}));
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Elementwise, OpConformance, ::testing::ValuesIn(ElementwiseCases()), CaseName);

// Tries all 65,536 upper halves, NaNs and infinities among them, each with lower halves around the ties. A NaN stays a
// NaN on every backend; only backends with keeps_nans keep its kind.
template <class T>
void ExpectRoundsToNearestEven(DType dtype, const std::vector<uint32_t>& lower_halves) {
  std::vector<uint32_t> bits;
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const uint32_t lower : lower_halves) bits.push_back(upper << 16 | lower);
  }
  const int64_t n = static_cast<int64_t>(bits.size());
  TestMemory memory;
  const Tensor from = memory.FloatBits({n}, bits), to = memory.Output(dtype, {n});
  for (const TestBackend& backend : TestBackends()) {
    SCOPED_TRACE(backend.name);
    std::vector<std::byte> image = RunOnBackend(backend.name, memory, Copy{.from = from, .to = to});
    const auto* got = memory.Bind(to, image.data()).as<const T>();
    for (int64_t i = 0; i < n; ++i) {
      const float value = std::bit_cast<float>(bits[i]);
      const bool any_nan = std::isnan(value) && !backend.keeps_nans;
      const uint16_t want = any_nan ? 0x7fff : RoundTo<T>(value).bits;
      ASSERT_EQ(got[i].bits, want) << std::hex << bits[i];
    }
  }
}

TEST(Copy, RoundsToNearestEvenAndKeepsNaNs) {
  ExpectRoundsToNearestEven<BFloat16>(DType::kBFloat16, {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff});
  ExpectRoundsToNearestEven<Float16>(DType::kFloat16, {0, 0xfff, 0x1000, 0x1001, 0x3000, 0x8000, 0xffff});
}

TEST(Copy, WidensEveryHalf) {
  std::vector<double> values;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) values.push_back(ToFloat(Float16{static_cast<uint16_t>(bits)}));
  TestMemory memory;
  const Tensor from = memory.Values(DType::kFloat16, {0x10000}, values), to = memory.Output(DType::kFloat32, {0x10000});
  for (const TestBackend& backend : TestBackends()) {
    std::vector<std::byte> image = RunOnBackend(backend.name, memory, Copy{.from = from, .to = to});
    const auto* got = memory.Bind(to, image.data()).as<const float>();
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(values[i])) {
        ASSERT_TRUE(std::isnan(got[i])) << backend.name << std::hex << i;
      } else {
        ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(static_cast<float>(values[i])))
            << backend.name << std::hex << i;
      }
    }
  }
}

// Each of K = 20 micro-batches adds 2^-10 to a total of about 1, where a step d of bf16 is at most 2^-7: rounding to
// nearest would lose all of them. The error of a rounding is 0 on average, whatever the total was before, and lies in
// an interval of length d. So the mean of n = 4096 elements errs by more than 4 d sqrt(K / n) with a probability of at
// most 2 exp(-2 * 4^2) = 3e-14 (Azuma and Hoeffding).
TEST(Accumulate, RoundsToTheExactSumOnAverage) {
  constexpr int64_t kElements = 4096, kMicroBatches = 20;
  TestMemory memory;
  Accumulate op{.x_N = memory.Values(DType::kFloat32, {kElements}, std::vector<double>(kElements, 0x1p-10)),
                .total_N = memory.Values(DType::kBFloat16, {kElements}, std::vector<double>(kElements, 0.99609375)),
                .accumulate = true,
                .update_count_1 = memory.Values(DType::kInt64, {1}, {7}),
                .micro_batch_1 = memory.Values(DType::kInt64, {1}, {0}),
                .seed = 5,
                .stream = GradientStream(0)};
  std::vector<std::byte> image = RunOnReference(memory, op);
  double mean = 0;
  for (int64_t k = 0; k < kMicroBatches; ++k) {
    if (k > 0) {
      *memory.Bind(op.micro_batch_1, image.data()).as<int64_t>() = k;
      ASSERT_TRUE(RunReference(memory.Bind(op, image.data())).ok());
    }
  }
  const auto* total = memory.Bind(op.total_N, image.data()).as<const BFloat16>();
  std::set<uint16_t> different;
  for (int64_t i = 0; i < kElements; ++i) {
    mean += ToFloat(total[i]) / kElements;
    different.insert(total[i].bits);
  }
  EXPECT_NEAR(mean, 0.99609375 + kMicroBatches * 0x1p-10, 4 * 0x1p-7 * std::sqrt(1.0 * kMicroBatches / kElements));
  EXPECT_GT(different.size(), 3);
}

TEST(BiasGradient, IsTheDerivativeOfAMatMulsBias) {
  constexpr DType kWide = DType::kFloat64;
  GradientCase c;
  const Tensor a = c.memory.Random(kWide, {4, 2}), b = c.memory.Random(kWide, {2, 3}),
               bias = c.memory.Random(kWide, {3});
  const Tensor out = c.memory.Output(kWide, {4, 3}), d_out = c.memory.Random(kWide, {4, 3});
  const Tensor d_bias = c.memory.Output(kWide, {3});
  c.forward = {MatMul{.a = a, .b = b, .bias_N = bias, .c_MN = out}};
  c.backward = {BiasBackward{.d_out_TN = d_out, .d_bias_N = d_bias}};
  c.outputs = {{out, d_out}};
  c.inputs = {{bias, d_bias}};
  ExpectGradientsMatchFiniteDifferences(c);
}

}  // namespace
}  // namespace shale::testing
