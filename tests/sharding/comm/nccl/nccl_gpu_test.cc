// Tests NCCL itself on GPUs. Skipped where there is none. Two ranks take two GPUs, or else share one where NCCL lets
// them.
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/device/cuda/cuda_device.h"
#include "kernels/device/cuda/cudart.h"
#include "sharding/comm/nccl/nccl.h"
#include "sharding/comm/nccl/nccl_library.h"
#include "tests/sharding/comm/communicator_conformance.h"

namespace shale {
namespace {

class NcclGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", /*overwrite=*/0);  // Since NCCL 2.30.
    runtime_ = CreateCudart();
    const absl::StatusOr<int> gpus = runtime_->DeviceCount();
    if (!gpus.ok() || *gpus == 0) GTEST_SKIP() << "no GPU: " << gpus.status();
    absl::StatusOr<std::unique_ptr<NcclApi>> nccl = LoadNccl();
    if (!nccl.ok()) GTEST_SKIP() << nccl.status();
    nccl_ = *std::move(nccl);
    gpus_ = *gpus;
  }

  // Creates a group with rank r on GPU r, or with all ranks on GPU 0 if there are fewer GPUs than ranks.
  absl::StatusOr<Group> CreateGroup(int size) {
    std::vector<int> ordinals;
    for (int rank = 0; rank < size; ++rank) {
      ordinals.push_back(gpus_ >= size ? rank : 0);
      absl::StatusOr<std::unique_ptr<CudaDevice>> device = CudaDevice::Create(*runtime_, {.ordinal = ordinals.back()});
      if (!device.ok()) return device.status();
      devices_.push_back(*std::move(device));
    }
    return CreateNcclGroup(nccl_, runtime_, ordinals, {.timeout_seconds = 60});
  }

  // Checks all collectives, in place and not, on random numbers. With up to two ranks, the order does not change an
  // fp32 sum.
  void CheckCollectives(Group& group) {
    constexpr int64_t n = 100'003;
    const int size = static_cast<int>(group.size());
    std::vector<std::vector<float>> values(size, std::vector<float>(n * size));
    std::vector<float> total(n * size), joined(n * size);
    for (int rank = 0; rank < size; ++rank) {
      std::mt19937 random(rank);
      std::normal_distribution<float> normal(0, 1e3);
      for (float& x : values[rank]) x = normal(random);
      for (int64_t i = 0; i < n * size; ++i) total[i] += values[rank][i];
      std::copy_n(values[rank].begin() + rank * n, n, joined.begin() + rank * n);
    }
    ForEachRank(size, [&](int rank) {
      Device& device = *devices_[rank];
      std::unique_ptr<Stream> stream = *device.CreateStream("reduce");
      for (bool in_place : {false, true}) {
        const DeviceVector<float> data(device, values[rank], *stream), other(device, n * size);
        const DeviceVector<float>& to = in_place ? data : other;
        ASSERT_TRUE(group[rank]->AllGather(data.View(rank * n, n), to.View(), *stream).ok());
        EXPECT_EQ(to.Read(*stream), joined);
      }
      for (bool in_place : {false, true}) {
        const DeviceVector<float> data(device, values[rank], *stream), other(device, n * size);
        const DeviceVector<float>& to = in_place ? data : other;
        ASSERT_TRUE(group[rank]->ReduceScatterSum(data.View(), to.View(rank * n, n), *stream).ok());
        const std::vector<float> found = to.Read(*stream);
        EXPECT_EQ(std::memcmp(found.data() + rank * n, total.data() + rank * n, n * sizeof(float)), 0);
      }
      const DeviceVector<float> data(device, values[rank], *stream);
      const DeviceVector<int64_t> count(device, std::vector<int64_t>{int64_t{1} << 40}, *stream);
      ASSERT_TRUE(group[rank]->AllReduceSum(data.View(), *stream).ok());
      ASSERT_TRUE(group[rank]->AllReduceSum(count.View(), *stream).ok());
      EXPECT_EQ(data.Read(*stream), total);
      EXPECT_EQ(count.Read(*stream)[0], size * (int64_t{1} << 40));
      CheckAllToAll(*group[rank], device, *stream, /*times=*/37);
    });
  }

  std::shared_ptr<CudaRuntime> runtime_;
  std::shared_ptr<NcclApi> nccl_;
  int gpus_ = 0;
  std::vector<std::unique_ptr<CudaDevice>> devices_;
};

TEST_F(NcclGpuTest, OneRankHasItsOwnNumbers) {
  absl::StatusOr<Group> group = CreateGroup(1);
  ASSERT_TRUE(group.ok()) << group.status();
  CheckCollectives(*group);
}

TEST_F(NcclGpuTest, TwoRanksHaveTheBitsOfASumInRankOrder) {
  absl::StatusOr<Group> group = CreateGroup(2);
  if (!group.ok() && gpus_ < 2) GTEST_SKIP() << "one GPU is not enough: " << group.status();
  ASSERT_TRUE(group.ok()) << group.status();
  CheckCollectives(*group);
}

TEST_F(NcclGpuTest, ARankThatDoesNotComeEndsTheGroup) {
  absl::StatusOr<Group> group = CreateGroup(2);
  if (!group.ok() && gpus_ < 2) GTEST_SKIP() << "one GPU is not enough: " << group.status();
  ASSERT_TRUE(group.ok()) << group.status();
  CheckCollectives(*group);  // Makes the connections.
  std::unique_ptr<Stream> stream = *devices_[0]->CreateStream("reduce");
  const DeviceVector<float> data(*devices_[0], 1000);
  const absl::Status enqueued = (*group)[0]->AllReduceSum(data.View(), *stream);
  ASSERT_TRUE(enqueued.ok()) << enqueued;
  (*group)[1]->Abort(absl::CancelledError("stop"));
  EXPECT_EQ(stream->Synchronize().code(), absl::StatusCode::kAborted);
}

}  // namespace
}  // namespace shale
