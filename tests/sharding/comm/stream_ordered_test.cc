#include "sharding/comm/stream_ordered.h"

#include <cmath>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "kernels/check.h"
#include "kernels/device/cpu/cpu_device.h"
#include "sharding/comm/sum_ranks.h"
#include "tests/sharding/comm/communicator_conformance.h"

namespace shale {
namespace {

using ::testing::HasSubstr;

absl::Status SumOnCpu(DType dtype, absl::Span<const std::byte* const> inputs, std::byte* out, int64_t elements,
                      Stream& stream) {
  SHALE_ASSIGN_OR_RETURN(CpuStream * cpu, CpuStream::From(stream));
  return cpu->Enqueue([dtype, all = std::vector<const std::byte*>(inputs.begin(), inputs.end()), out, elements] {
    SumRanks(dtype, all, out, elements);
    return absl::OkStatus();
  });
}

Group Create(int size, double timeout_seconds = 0) {
  // Events of any CPU device serve the streams of any other.
  const std::vector<std::shared_ptr<Device>> devices(size, CreateCpuDevice());
  absl::StatusOr<Group> group =
      CreateStreamOrderedGroup(devices, {.sum_ranks = SumOnCpu, .timeout_seconds = timeout_seconds});
  EXPECT_TRUE(group.ok()) << group.status();
  return *std::move(group);
}

INSTANTIATE_TEST_SUITE_P(StreamOrdered, CommunicatorConformance,
                         ::testing::Values(CommunicatorCase{"Threads", [] { return CreateCpuDevice(); },
                                                            [](int size, Device&) { return Create(size); }},
                                           CommunicatorCase{"ShallowQueues",
                                                            [] { return CreateCpuDevice({.queue_depth = 2}); },
                                                            [](int size, Device&) { return Create(size, 600); }}),
                         CaseName);

TEST(StreamOrderedGroupTest, SumsAreFormedInRankOrder) {
  constexpr int kRanks = 5;
  constexpr int64_t n = 1003;
  Group group = Create(kRanks);
  std::vector<std::vector<float>> data(kRanks, std::vector<float>(n));
  std::mt19937 random(7);
  std::lognormal_distribution<float> wide(0, 8);
  for (auto& vector : data) {
    for (float& x : vector) x = random() % 2 == 0 ? wide(random) : -wide(random);
  }
  std::vector<float> expected = data[0];
  for (int rank = 1; rank < kRanks; ++rank) {
    for (int64_t i = 0; i < n; ++i) expected[i] += data[rank][i];
  }
  CpuDevice device;
  ForEachRank(kRanks, [&](int rank) {
    std::unique_ptr<Stream> stream = *device.CreateStream("reduce");
    const Tensor all = Tensor::Contiguous(DType::kFloat32, {n}, data[rank].data());
    ASSERT_TRUE(group[rank]->AllReduceSum(all, *stream).ok());
    ASSERT_TRUE(stream->Synchronize().ok());
  });
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(data[rank], expected) << rank;
}

TEST(StreamOrderedGroupTest, RanksThatDisagreeAreTold) {
  Group group = Create(2);
  CpuDevice device;
  ForEachRank(2, [&](int rank) {
    std::unique_ptr<Stream> stream = *device.CreateStream("reduce");
    std::vector<float> data(10 + rank);
    const absl::Status status = group[rank]->AllReduceSum(
        Tensor::Contiguous(DType::kFloat32, {std::ssize(data)}, data.data()), *stream);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("11 f32"));
    EXPECT_TRUE(stream->Synchronize().ok());
  });
}

TEST(StreamOrderedGroupTest, APeerThatDoesNotComeIsNamed) {
  Group group = Create(2, 0.05);
  CpuDevice device;
  std::unique_ptr<Stream> stream = *device.CreateStream("reduce");
  std::vector<float> data(10);
  const absl::Status status =
      group[0]->AllReduceSum(Tensor::Contiguous(DType::kFloat32, {10}, data.data()), *stream);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1"));
}

}  // namespace
}  // namespace shale
