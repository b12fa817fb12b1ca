// Tests what a launch may ask for.
#include <set>
#include <vector>

#include "tests/kernels/cuda/host/expect_report.h"

namespace shale::cuda {
namespace {

SHALE_KERNEL Nothing() {}

TEST(Launch, LimitsAreThoseOfCuda) {
  const auto code = [](const LaunchShape& shape) { return Launch("Nothing", Nothing, shape, nullptr).code(); };
  constexpr auto kOk = absl::StatusCode::kOk, kRefused = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code({dim3(1), dim3(1024)}), kOk);
  EXPECT_EQ(code({dim3(1), dim3(1025)}), kRefused);
  EXPECT_EQ(code({dim3(1), dim3(32, 33)}), kRefused);
  EXPECT_EQ(code({dim3(1), dim3(1, 1, 64)}), kOk);
  EXPECT_EQ(code({dim3(1), dim3(1, 1, 65)}), kRefused);
  EXPECT_EQ(code({dim3(1), dim3(0)}), kRefused);
  EXPECT_EQ(code({dim3(0), dim3(1)}), kRefused);
  EXPECT_EQ(code({dim3(1, 0), dim3(1)}), kRefused);
  EXPECT_EQ(code({dim3(0x80000000u), dim3(1)}), kRefused);
  EXPECT_EQ(code({dim3(1, 65536), dim3(1)}), kRefused);
  EXPECT_EQ(code({dim3(1, 1, 65536), dim3(1)}), kRefused);
  EXPECT_EQ(code({dim3(1), dim3(1), 227 << 10}), kOk);
  EXPECT_EQ(code({dim3(1), dim3(1), (227 << 10) + 1}), kRefused);
}

TEST(Launch, ARefusalSaysWhatWasWantedAndWhatWasFound) {
  const absl::Status status = Launch("Nothing", Nothing, {dim3(1), dim3(32, 33)}, nullptr);
  EXPECT_EQ(status.message(), "Nothing: blocks of 32 x 33 x 1 threads; wanted 1 to 1024 in all, z up to 64");
}

template <int kBytes>
SHALE_KERNEL StaticArray() {
  SHALE_SHARED_ARRAY(float, row, kBytes / 4);
  row.Store(threadIdx.x, 1.0f);
}

TEST(Launch, StaticSharedMemoryHasItsOwnLimitAndASharedOne) {
  constexpr int kKiB = 1 << 10;
  ExpectRight([](StreamHandle s) { return Launch("Static", StaticArray<48 * kKiB>, {dim3(1), dim3(2)}, s); });
  ExpectWrong(
      [](StreamHandle s) {
        return Launch("Static", StaticArray<49 * kKiB>, {dim3(1), dim3(2)}, s);
      },
      {"shared array row of 50176 bytes is too large"});
  const LaunchShape dynamic{dim3(1), dim3(2), 200 * kKiB};
  ExpectWrong([&](StreamHandle s) { return Launch("Static", StaticArray<40 * kKiB>, dynamic, s); },
              {"shared array row of 40960 bytes is too large"});
}

// Records the order of threads. A kernel on a GPU could not see it.
std::vector<unsigned>& Order() {
  static auto& order = *new std::vector<unsigned>;
  return order;
}
SHALE_KERNEL NoteOrder() { Order().push_back(blockIdx.x * 100 + threadIdx.x); }

TEST(Launch, BlocksAndThreadsRunInAnOrderThatTheSeedGives) {
  std::set<std::vector<unsigned>> orders;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    for (int repeat = 0; repeat < 2; ++repeat) {
      Order().clear();
      cuda_on_host::Stream stream{.seed = seed};
      ASSERT_TRUE(Launch("NoteOrder", NoteOrder, {dim3(4), dim3(4)}, &stream).ok());
      EXPECT_EQ(std::set<unsigned>(Order().begin(), Order().end()).size(), 16);
      orders.insert(Order());
    }
  }
  EXPECT_EQ(orders.size(), 10);
}

SHALE_KERNEL StoreIndices(Global<unsigned> out) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  out.Store(block * blockDim.x * blockDim.y * blockDim.z + thread, block * 1000 + thread);
}

TEST(Launch, EveryThreadOfEveryBlockRunsOnce) {
  std::vector<unsigned> out(24 * 30);
  const LaunchShape shape{dim3(4, 3, 2), dim3(5, 3, 2)};
  ASSERT_TRUE(Launch("Indices", StoreIndices, shape, nullptr, Global<unsigned>(out.data(), 24 * 30, "out")).ok());
  for (unsigned i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], i / 30 * 1000 + i % 30);
}

}  // namespace
}  // namespace shale::cuda
