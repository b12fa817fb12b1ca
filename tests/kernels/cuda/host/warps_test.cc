// Tests shuffles, votes and warp barriers, with all lanes and with some.
#include <bit>
#include <vector>

#include "tests/kernels/cuda/host/expect_report.h"

namespace shale::cuda {
namespace {

constexpr int kWarpThreads = 64;

// Runs `kernel` in two warps, and returns what each thread stored.
template <class Kernel>
std::vector<int> Results(const Kernel& kernel) {
  std::vector<int> out(kWarpThreads, -1);
  const Global<int> global(out.data(), kWarpThreads, "out");
  ExpectRight([&](StreamHandle s) { return Launch("Kernel", kernel, {dim3(1), dim3(kWarpThreads)}, s, global); });
  return out;
}

SHALE_KERNEL SumByXor(Global<int> out) {
  int sum = static_cast<int>(threadIdx.x);
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(kAllLanes, sum, lanes);
  out.Store(threadIdx.x, sum);
}

SHALE_KERNEL Shuffles(Global<int> out) {
  const int t = static_cast<int>(threadIdx.x);
  const int down = __shfl_down_sync(kAllLanes, t, 3, 8);
  const int first = __shfl_sync(kAllLanes, t, 0, 16);
  out.Store(t, down * 100 + first);
}

SHALE_KERNEL Votes(Global<int> out) {
  const unsigned t = threadIdx.x;
  const unsigned odd = __ballot_sync(kAllLanes, t % 2);
  const int any = __any_sync(kAllLanes, t == 40);
  out.Store(t, odd == 0xaaaaaaaau ? any : -1);
}

TEST(Warp, ShufflesAndVotesMeanWhatTheyDoInCuda) {
  const std::vector<int> sums = Results(SumByXor), shuffled = Results(Shuffles), votes = Results(Votes);
  for (int t = 0; t < kWarpThreads; ++t) {
    EXPECT_EQ(sums[t], t < 32 ? 496 : 496 + 32 * 32);
    const int down = t % 8 + 3 < 8 ? t + 3 : t;
    EXPECT_EQ(shuffled[t], down * 100 + t / 16 * 16);
    EXPECT_EQ(votes[t], t >= 32);
  }
}

// A warp multiplies two 16 x 16 matrices in shared memory, of which the second is stored by columns or by rows.
constexpr int kSide = 16, kSideStride = kSide + 8;

template <bool kByColumns>
SHALE_KERNEL MultiplySquares(Global<BFloat16> a, Global<BFloat16> b, Global<float> product) {
  SHALE_SHARED_ARRAY(BFloat16, left, kSide * kSideStride);
  SHALE_SHARED_ARRAY(BFloat16, right, kSide * kSideStride);
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < kSide * kSide; i += 32) {
    left.Store(i / kSide * kSideStride + i % kSide, a.Load(i));
    right.Store(i / kSide * kSideStride + i % kSide, b.Load(i));
  }
  __syncwarp();
  unsigned x[4], y[4];
  LoadMatrices(left, lane % 16 * kSideStride + lane / 16 * 8, x);
  if (kByColumns) {
    LoadMatrices(right, (lane % 8 + lane / 16 * 8) * kSideStride + lane / 8 % 2 * 8, y);
  } else {
    LoadTransposed(right, lane % 16 * kSideStride + lane / 16 * 8, y);
  }
  for (int half = 0; half < 2; ++half) {
    float c[4] = {};
    MultiplyAdd<BFloat16>(x, {y[2 * half], y[2 * half + 1]}, c);
    for (int e = 0; e < 4; ++e) {
      product.Store((lane / 4 + e / 2 * 8) * kSide + half * 8 + lane % 4 * 2 + e % 2, c[e]);
    }
  }
}

TEST(Warp, MatricesAreMultipliedAsByTensorCores) {
  std::vector<BFloat16> a(kSide * kSide), b(kSide * kSide);
  for (int i = 0; i < kSide * kSide; ++i) {
    a[i] = RoundToBFloat16(static_cast<float>(i % 37 - 18));
    b[i] = RoundToBFloat16(static_cast<float>(i * 7 % 41 - 20));
  }
  for (const bool by_columns : {false, true}) {
    std::vector<float> product(kSide * kSide);
    const Global<BFloat16> left(a.data(), kSide * kSide, "a"), right(b.data(), kSide * kSide, "b");
    const Global<float> out(product.data(), kSide * kSide, "product");
    ExpectRight([&](StreamHandle s) {
      return Launch("MultiplySquares", by_columns ? MultiplySquares<true> : MultiplySquares<false>, {dim3(1), dim3(32)},
                    s, left, right, out);
    });
    for (int i = 0; i < kSide; ++i) {
      for (int j = 0; j < kSide; ++j) {
        float sum = 0;
        for (int k = 0; k < kSide; ++k) {
          sum += ToFloat(a[i * kSide + k]) * ToFloat(b[by_columns ? j * kSide + k : k * kSide + j]);
        }
        EXPECT_EQ(product[i * kSide + j], sum) << i << " " << j << " " << by_columns;
      }
    }
  }
}

TEST(Warp, PairsAreRoundedWithTheFirstBelow) {
  EXPECT_EQ(PairOf<BFloat16>(1.0f, -2.0f), 0xc0003f80u);
  EXPECT_EQ(PairOf<Float16>(1.0f, -2.0f), 0xc0003c00u);
}

// The upper half of each warp has returned, but the mask still names it.
SHALE_KERNEL SumOfLowerHalf(Global<int> out) {
  if (threadIdx.x % 32 >= 16) return;
  int sum = 1;
  for (int lanes = 8; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(kAllLanes, sum, lanes);
  out.Store(threadIdx.x, sum);
}

// Two groups of a warp, each with its own mask and number of shuffles.
SHALE_KERNEL TwoGroups(Global<int> out) {
  const bool low = threadIdx.x % 32 < 8;
  const unsigned mask = low ? 0xffu : 0xffffff00u;
  int count = 0;
  for (int i = 0; i < (low ? 3 : 1); ++i) count += std::popcount(__ballot_sync(mask, 1));
  out.Store(threadIdx.x, count);
}

TEST(Warp, MasksAreHonoured) {
  const std::vector<int> lower = Results(SumOfLowerHalf), groups = Results(TwoGroups);
  for (int t = 0; t < kWarpThreads; ++t) {
    EXPECT_EQ(lower[t], t % 32 < 16 ? 16 : -1);
    EXPECT_EQ(groups[t], 24);
  }
}

SHALE_KERNEL ShuffleFromLaneThatLeft(Global<int> out) {
  if (threadIdx.x == 5) return;
  out.Store(threadIdx.x, __shfl_sync(kAllLanes, 1, 5));
}

SHALE_KERNEL MaskWithoutSelf(Global<int> out) { __syncwarp(0x0000ffffu); }

SHALE_KERNEL MasksDiffer(Global<int> out) { __syncwarp(threadIdx.x < 4 ? kAllLanes : 0xfffffffeu); }

SHALE_KERNEL LaneGoesElsewhere(Global<int> out) {
  if (threadIdx.x == 7) {
    __syncthreads();
  } else {
    __syncwarp();
  }
}

TEST(Warp, OperationsThatWaitForNobodyAreReported) {
  std::vector<int> out(kWarpThreads);
  const Global<int> global(out.data(), kWarpThreads, "out");
  const auto run = [&](void (*kernel)(Global<int>)) {
    return [=](StreamHandle s) { return Launch("Warp", kernel, {dim3(1), dim3(32)}, s, global); };
  };
  ExpectWrong(run(ShuffleFromLaneThatLeft), {"from lane 5, which takes no part"});
  ExpectWrong(run(MaskWithoutSelf), {"which lacks its own lane"});
  ExpectWrong(run(MasksDiffer),
              {"thread (0, 0, 0) is at the __syncwarp of ", "with mask 0xffffffff, and thread (4, 0, 0)"});
  ExpectWrong(run(LaneGoesElsewhere),
              {"thread (0, 0, 0) is at the __syncwarp", "thread (7, 0, 0) is at the __syncthreads()"});
}

enum class Between { kNothing, kShuffle, kWarpBarrier, kBarrierOfOthers };

// Each lane reads what its neighbor wrote.
template <Between kBetween>
SHALE_KERNEL Rotate(Global<int> out) {
  SHALE_SHARED_ARRAY(int, row, kWarpThreads);
  const int t = static_cast<int>(threadIdx.x);
  row.Store(t, t);
  if (kBetween == Between::kShuffle) __shfl_xor_sync(kAllLanes, t, 1);
  if (kBetween == Between::kWarpBarrier) __syncwarp();
  if (kBetween == Between::kBarrierOfOthers && t % 32 != 9) __syncwarp(~(1u << 9));
  out.Store(t, row.Load(t / 32 * 32 + (t + 1) % 32));
}

template <Between kBetween>
absl::Status RunRotate(StreamHandle stream) {
  std::vector<int> out(kWarpThreads);
  const LaunchShape shape{dim3(1), dim3(kWarpThreads)};
  return Launch("Rotate", Rotate<kBetween>, shape, stream, Global<int>(out.data(), kWarpThreads, "out"));
}

TEST(Warp, OnlyItsBarrierOrdersMemoryAndOnlyForThoseWhoTakePart) {
  ExpectRight(RunRotate<Between::kWarpBarrier>);
  ExpectWrong(RunRotate<Between::kNothing>, {"shared row["});
  ExpectWrong(RunRotate<Between::kShuffle>, {"shared row[", "with no barrier between them"});
  ExpectWrong(RunRotate<Between::kBarrierOfOthers>, {"shared row["});
}

// A warp barrier does not order the other warp.
SHALE_KERNEL AcrossWarps() {
  SHALE_SHARED_ARRAY(int, box, 1);
  if (threadIdx.x == 0) box.Store(0, 1);
  __syncwarp();
  if (threadIdx.x == 32) box.Store(0, 2);
}

TEST(Warp, ItsBarrierDoesNotOrderOtherWarps) {
  ExpectWrong(
      [](StreamHandle s) {
        return Launch("Across", AcrossWarps, {dim3(1), dim3(64)}, s);
      },
      {"writes shared box[0]"});
}

}  // namespace
}  // namespace shale::cuda
