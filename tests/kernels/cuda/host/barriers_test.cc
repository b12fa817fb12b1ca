// Tests __syncthreads: which threads must reach it, and that removing one is reported.
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/kernels/cuda/host/expect_report.h"

namespace shale::cuda {
namespace {

SHALE_KERNEL InABranch(bool both) {
  if (threadIdx.x < 40) {
    __syncthreads();
  } else if (both) {
    __syncthreads();
  }
}

TEST(BlockBarrier, InADivergentBranch) {
  ExpectWrong(
      [](StreamHandle s) {
        return Launch("Branch", InABranch, {dim3(1), dim3(64)}, s, true);
      },
      {absl::StrCat("thread (0, 0, 0) is at the __syncthreads() of ", __FILE__, ":"),
       absl::StrCat("thread (40, 0, 0) is at the __syncthreads() of ", __FILE__, ":")});
  ExpectWrong(
      [](StreamHandle s) {
        return Launch("Branch", InABranch, {dim3(1), dim3(64)}, s, false);
      },
      {"thread (0, 0, 0) is at the __syncthreads()", "thread (40, 0, 0) has returned"});
}

SHALE_KERNEL ReturnEarly(unsigned count) {
  if (threadIdx.x >= count) return;
  __syncthreads();
}

// The hardware lets the other threads go on, but CUDA demands that all threads of the block come.
TEST(BlockBarrier, IsNotReachedByThreadsThatReturned) {
  ExpectWrong(
      [](StreamHandle s) {
        return Launch("Early", ReturnEarly, {dim3(2), dim3(64)}, s, 63u);
      },
      {"thread (63, 0, 0) has returned; wanted all threads of the block at one place"});
  ExpectRight([](StreamHandle s) { return Launch("Early", ReturnEarly, {dim3(2), dim3(64)}, s, 0u); });
  ExpectRight([](StreamHandle s) { return Launch("Early", ReturnEarly, {dim3(2), dim3(64)}, s, 64u); });
}

// A failed launch leaves nothing behind.
TEST(BlockBarrier, TheNextLaunchStartsAfresh) {
  EXPECT_FALSE(Launch("Early", ReturnEarly, {dim3(1), dim3(64)}, nullptr, 5u).ok());
  EXPECT_TRUE(Launch("Early", ReturnEarly, {dim3(1), dim3(64)}, nullptr, 64u).ok());
}

// Computes a running sum over 100 threads with three barriers, each of which is needed.
SHALE_KERNEL PrefixSum(Global<int> values) {
  SHALE_SHARED_ARRAY(int, sums, 100);
  const int t = static_cast<int>(threadIdx.x);
  sums.Store(t, values.Load(t));
  __syncthreads();
  for (int step = 1; step < 100; step *= 2) {
    const int sum = sums.Load(t) + (t >= step ? sums.Load(t - step) : 0);
    __syncthreads();
    sums.Store(t, sum);
    __syncthreads();
  }
  values.Store(t, sums.Load(99 - t));
}

TEST(BlockBarrier, EveryOneThatIsTakenOutIsMissed) {
  std::vector<int> values(100, 1);
  const Global<int> global(values.data(), 100, "values");
  cuda_on_host::Stream whole;
  ASSERT_TRUE(Launch("PrefixSum", PrefixSum, {dim3(1), dim3(100)}, &whole, global).ok());
  for (int t = 0; t < 100; ++t) EXPECT_EQ(values[t], 100 - t);
  ASSERT_EQ(whole.barriers.size(), 3);
  for (const cuda_on_host::Site& site : whole.barriers) {
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      cuda_on_host::Stream stream{.seed = seed, .without_barrier = site};
      const absl::Status status = Launch("PrefixSum", PrefixSum, {dim3(1), dim3(100)}, &stream, global);
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << "line " << site.line << ", seed " << seed;
    }
  }
}

}  // namespace
}  // namespace shale::cuda
