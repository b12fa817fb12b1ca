// Tests kernels over flat vectors: with any alignment, and with lists of ranges that are too long for one launch.
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/ops/flat.h"
#include "kernels/ops/update.h"
#include "kernels/step_scalars.h"
#include "tests/kernels/cuda/run_cuda.h"

namespace shale::testing {
namespace {

// Returns elements [first, first + n) of a tensor of n + 8.
using Make = std::function<Tensor(std::initializer_list<int64_t>)>;
Tensor From(int64_t first, int64_t n, const Make& make) { return make({n + 8}).Slice(0, first, n); }

std::shared_ptr<const std::vector<ElementRange>> Shared(std::vector<ElementRange> ranges) {
  return std::make_shared<const std::vector<ElementRange>>(std::move(ranges));
}

// Tries sizes of whole blocks, of packs, and with a remainder. They begin at multiples of 16 bytes and elsewhere.
TEST(CudaFlat, CopiesAndAddsAtAnyAddress) {
  for (const int64_t n : {1, 7, 4096, 8200, 8204}) {
    for (const int64_t first : {0, 1, 4}) {
      SCOPED_TRACE(std::to_string(n) + " from " + std::to_string(first));
      TestMemory memory;
      for (const DType from : {DType::kFloat32, DType::kBFloat16}) {
        const auto random = [&](auto shape) { return memory.Random(from, shape); };
        const Tensor x = From(first, n, random);
        for (const DType to : {DType::kFloat32, DType::kBFloat16}) {
          const auto output = [&](auto shape) { return memory.Output(to, shape); };
          ExpectMatchesReference(memory, Copy{.from = x, .to = From(first, n, output)}, {}, 1);
          ExpectMatchesReference(memory, Copy{.from = x, .to = From(0, n, output)}, {}, 1);
        }
        ExpectMatchesReference(memory, Add{.a = x, .b = From(first, n, random), .out = x}, {}, 1);
      }
      for (const DType whole : {DType::kUInt8, DType::kInt16, DType::kInt32, DType::kInt64, DType::kFloat64}) {
        const auto output = [&](auto shape) { return memory.Output(whole, shape); };
        const auto random = [&](auto shape) {
          return whole == DType::kFloat64
                     ? memory.Random(whole, shape)
                     : memory.RandomIntegers(whole, shape, whole == DType::kUInt8 ? 0 : -1000, 255);
        };
        ExpectMatchesReference(memory, Copy{.from = From(first, n, random), .to = From(first, n, output)}, {}, 1);
      }
    }
  }
}

// The order of a sum depends only on its size.
TEST(CudaSums, HaveTheSameBitsAtAnyAddress) {
  for (const int64_t n : {5, 1030, 16384, 40001}) {
    const std::vector<double> values = [n] {
      TestMemory memory;
      const Tensor t = memory.Random(DType::kFloat32, {n});
      std::vector<std::byte> image = memory.image();
      std::vector<double> drawn;
      for (int64_t i = 0; i < n; ++i) drawn.push_back(ElementOf(memory.Bind(t, image.data()), i));
      return drawn;
    }();
    std::vector<double> totals;
    for (const int64_t first : {0, 1, 2, 4}) {
      std::vector<double> shifted(first, 0.0);
      shifted.insert(shifted.end(), values.begin(), values.end());
      TestMemory memory;
      const Tensor x = memory.Values(DType::kFloat32, {n + first}, shifted).Slice(0, first, n);
      const SumSquares op = {.x_N = x, .total_1 = memory.Output(DType::kFloat64, {1})};
      std::vector<std::byte> image;
      const absl::Status status = RunOnCuda(memory, op, image);
      ASSERT_TRUE(status.ok()) << status;
      totals.push_back(ElementOf(memory.Bind(op.total_1, image.data()), 0));
      EXPECT_EQ(totals.back(), totals.front()) << n << " from " << first;
    }
  }
}

TEST(CudaZeroRanges, TakesAnyNumberOfAnyLength) {
  std::vector<ElementRange> ranges = {{0, 9000}};
  for (int64_t i = 0; i < 150; ++i) ranges.push_back({9001 + 7 * i, 9001 + 7 * i + i % 6});
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    TestMemory memory;
    ExpectMatchesReference(memory, ZeroRanges{.x_N = memory.Random(dtype, {11000}), .ranges = Shared(ranges)}, {}, 2);
  }
}

// Returns an update of elements [first, first + n) of larger tensors. Scales are not cut out of larger tensors.
Update MakeUpdate(TestMemory& memory, const UpdateRule& rule, DType weight, int64_t n, int64_t first) {
  const auto random = [&](double low, double high) {
    return From(first, n, [&, low, high](auto shape) { return memory.Random(DType::kFloat32, shape, low, high); });
  };
  Update op{.rule = rule};
  op.update_5 = memory.Values(DType::kFloat32, {kUpdateSize}, {1e-2, 0.19, 0.0975, 0.75, 0});
  op.gradient_P = random(-1, 1);
  const absl::Span<const UpdateState> states = StatesOf(rule);
  for (size_t i = 0; i < states.size(); ++i) {
    const bool positive = states[i].name == "v";
    if (states[i].block > 1) {
      op.states[i] = memory.Random(DType::kFloat32, {(n + states[i].block - 1) / states[i].block}, 0.1, 0.2);
    } else if (states[i].dtype == DType::kUInt8) {
      // The upper half of the unsigned map has the entries from 0.1 to 1, so that v is at least 0.01.
      op.states[i] = From(
          first, n, [&](auto shape) { return memory.RandomIntegers(DType::kUInt8, shape, positive ? 128 : 0, 256); });
    } else {
      op.states[i] = positive ? random(0.01, 0.1) : random(-0.1, 0.1);
    }
  }
  op.weight_P = From(first, n, [&](auto shape) { return memory.Random(weight, shape); });
  if (weight == DType::kBFloat16) op.master_P = random(-1, 1);
  return op;
}

// Tries hundreds of ranges: empty, of one element, touching, before and behind the shard.
TEST(CudaUpdate, TakesAnyNumberOfDecayedRanges) {
  constexpr int64_t kSize = 6000, kBegin = 500;
  for (const int64_t stride : {3, 5, 11, 60}) {
    std::vector<ElementRange> ranges = {{0, 100}};
    for (int64_t begin = 400; begin < kBegin + kSize + 100; begin += stride) {
      const int64_t length = begin % 7 == 0 ? stride : begin % 5 == 0 ? 0 : 1 + begin % (stride - 1);
      ranges.push_back({begin, begin + length});
    }
    for (const DType weight : {DType::kFloat32, DType::kBFloat16}) {
      for (const int64_t first : {0, 3}) {
        SCOPED_TRACE(NameOf(weight) + " every " + std::to_string(stride) + " from " + std::to_string(first));
        TestMemory memory;
        // With this weight decay, an element that decays differs visibly.
        Update op = MakeUpdate(memory, AdamWRule{.weight_decay = 10}, weight, kSize, first);
        op.shard_begin = kBegin;
        op.decayed = Shared(ranges);
        // As in the conformance suite, the step is below 4 lr, with some ten roundings, and p is rounded twice.
        ExpectMatchesReference(memory, op, {.absolute = 4 * 1e-2 * 16 * kUnit32 + 4 * kUnit32}, 1);
      }
    }
  }
}

// Decay begins and ends within blocks of 8-bit states, and has more edges than one launch takes. Codes may differ by
// one where rounding decides; update_adamw_8bit_test.cc compares them.
TEST(CudaUpdate, TakesDecayWithinBlocksOfState) {
  constexpr int64_t kSize = 2600, kBegin = 512;
  for (const int64_t stride : {2, 3, 90}) {
    std::vector<ElementRange> ranges;
    for (int64_t begin = 500; begin < kBegin + kSize + 100; begin += stride) ranges.push_back({begin, begin + 1});
    for (const DType weight : {DType::kFloat32, DType::kBFloat16}) {
      for (const int64_t first : {0, 3}) {
        SCOPED_TRACE(NameOf(weight) + " every " + std::to_string(stride) + " from " + std::to_string(first));
        TestMemory memory;
        Update op = MakeUpdate(memory, AdamW8BitRule{.weight_decay = 10}, weight, kSize, first);
        op.shard_begin = kBegin;
        op.decayed = Shared(ranges);
        std::vector<std::byte> want = RunOnReference(memory, op), got;
        const absl::Status status = RunOnCuda(memory, op, got);
        ASSERT_TRUE(status.ok()) << status;
        // As above, with two more roundings of m and v.
        const Tolerance tolerance = {.absolute = 4 * 1e-2 * 18 * kUnit32 + 4 * kUnit32};
        ExpectNear(memory, op.weight_P, got, want, tolerance);
        for (const int state : {2, 3}) ExpectNear(memory, op.states[state], got, want, {.absolute = 5 * kUnit32});
        for (const int state : {0, 1}) ExpectNear(memory, op.states[state], got, want, {.absolute = 1});
        if (op.master_P.present()) ExpectNear(memory, op.master_P, got, want, tolerance);
      }
    }
  }
}

}  // namespace
}  // namespace shale::testing
