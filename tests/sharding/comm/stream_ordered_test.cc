#include "sharding/comm/stream_ordered.h"

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

Group CreateOrdered(int size, double timeout_seconds = 0) {
  // Events of one CPU device work on the streams of any other.
  const std::vector<std::shared_ptr<Device>> devices(size, CreateCpuDevice());
  absl::StatusOr<Group> group =
      CreateStreamOrderedGroup(devices, {.sum_ranks = SumOnCpu, .timeout_seconds = timeout_seconds});
  EXPECT_TRUE(group.ok()) << group.status();
  return *std::move(group);
}

INSTANTIATE_TEST_SUITE_P(StreamOrdered, CommunicatorConformance,
                         ::testing::Values(CommunicatorCase{"Threads", [] { return CreateCpuDevice(); },
                                                            [](int size, Device&) { return CreateOrdered(size); }},
                                           CommunicatorCase{
                                               "ShallowQueues", [] { return CreateCpuDevice({.queue_depth = 2}); },
                                               [](int size, Device&) { return CreateOrdered(size, 600); }}),
                         CaseName);

TEST(StreamOrderedGroupTest, SumsAreFormedInRankOrder) {
  Group group = CreateOrdered(5);
  CpuDevice device;
  ExpectSumsInRankOrder(group, device, 1003);
}

TEST(StreamOrderedGroupTest, RanksThatDisagreeAreTold) {
  Group group = CreateOrdered(2);
  CpuDevice device;
  ForEachRank(2, [&](int rank) {
    std::unique_ptr<Stream> stream = *device.CreateStream("reduce");
    std::vector<float> data(10 + rank);
    const absl::Status status =
        group[rank]->AllReduceSum(Tensor::Contiguous(DType::kFloat32, {std::ssize(data)}, data.data()), *stream);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("11 f32"));
    EXPECT_TRUE(stream->Synchronize().ok());
  });
}

TEST(StreamOrderedGroupTest, APeerThatDoesNotComeIsNamed) {
  Group group = CreateOrdered(2, 0.05);
  CpuDevice device;
  std::unique_ptr<Stream> stream = *device.CreateStream("reduce");
  std::vector<float> data(10);
  const absl::Status status = group[0]->AllReduceSum(Tensor::Contiguous(DType::kFloat32, {10}, data.data()), *stream);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1"));
}

}  // namespace
}  // namespace shale
