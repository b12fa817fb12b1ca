// Tests in which orders the threads of a block run.
#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "tests/kernels/cuda/host/expect_report.h"

namespace shale::cuda {
namespace {

using cuda_on_host::ThreadOrder;

constexpr int kThreads = 128, kWarps = kThreads / 32;

// The warps of the threads that came to each of kSteps places of Walk, in the order in which they came.
std::vector<int> walked;
constexpr int kSteps = 4;

SHALE_KERNEL Walk() {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  walked.push_back(warp);
  __syncwarp();
  walked.push_back(warp);
  (void)__shfl_xor_sync(kAllLanes, warp, 1);
  walked.push_back(warp);
  __syncthreads();
  walked.push_back(warp);
}

// Returns how often another warp than before ran, in the steps before the barrier of all threads and after it.
std::vector<int> Changes(ThreadOrder order, uint64_t seed) {
  walked.clear();
  cuda_on_host::Stream stream{.seed = seed, .order = order};
  const absl::Status status = Launch("Walk", Walk, {dim3(1), dim3(kThreads)}, &stream);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(walked.size(), kSteps * kThreads);
  const auto barrier = walked.begin() + (kSteps - 1) * kThreads;
  const auto changes = [](auto begin, auto end) {
    return static_cast<int>(std::inner_product(begin + 1, end, begin, 0, std::plus<>(), std::not_equal_to<>()));
  };
  return {changes(walked.begin(), barrier), changes(barrier, walked.end())};
}

TEST(Orders, InTurnsEachThreadRunsToItsNextWait) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    for (int changes : Changes(ThreadOrder::kTurns, seed)) EXPECT_GT(changes, kThreads / 2);
  }
}

TEST(Orders, AWarpThatIsAheadRunsToTheNextBarrierOfAllThreads) {
  std::vector<int> first;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    EXPECT_EQ(Changes(ThreadOrder::kWarpsAhead, seed), (std::vector<int>{kWarps - 1, kWarps - 1}));
    first.push_back(walked.front());
  }
  for (int warp = 0; warp < kWarps; ++warp) EXPECT_NE(std::count(first.begin(), first.end(), warp), 0) << warp;
}

}  // namespace
}  // namespace shale::cuda
