#include "tests/sharding/comm/tracing.h"

#include "gmock/gmock.h"
#include "kernels/device/cpu/cpu_device.h"
#include "sharding/comm/in_process.h"
#include "tests/sharding/comm/communicator_conformance.h"

namespace shale {
namespace {

using ::testing::ElementsAre;

// A traced group obeys the laws of all groups.
INSTANTIATE_TEST_SUITE_P(Traced, CommunicatorConformance,
                         ::testing::Values(CommunicatorCase{"InProcess", [] { return CreateCpuDevice(); },
                                                            [](int size, Device&) {
                                                              static auto& trace = *new CollectiveTrace();
                                                              Group group = *CreateInProcessGroup(size);
                                                              for (auto& member : group) {
                                                                member = std::make_unique<TracingCommunicator>(
                                                                    std::move(member), &trace);
                                                              }
                                                              return group;
                                                            }}),
                         CaseName);

TEST(TracingTest, RecordsWhatWasEnqueuedInOrderOverAllCommunicators) {
  CpuDevice device;
  CollectiveTrace traces[2];
  Group gather = *CreateInProcessGroup(2), reduce = *CreateInProcessGroup(2);
  ForEachRank(2, [&](int rank) {
    TracingCommunicator g(std::move(gather[rank]), &traces[rank], "gather");
    TracingCommunicator r(std::move(reduce[rank]), &traces[rank], "reduce");
    EXPECT_EQ(g.rank(), rank);
    EXPECT_EQ(g.size(), 2);
    std::unique_ptr<Stream> gathering = *device.CreateStream("g"), reducing = *device.CreateStream("r");
    std::vector<float> full(12), shard(6);
    std::vector<int64_t> count(1);
    const Tensor full_tensor = Tensor::Contiguous(DType::kFloat32, {12}, full.data());
    const Tensor shard_tensor = Tensor::Contiguous(DType::kFloat32, {6}, shard.data());
    ASSERT_TRUE(r.AllReduceSum(Tensor::Contiguous(DType::kInt64, {1}, count.data()), *reducing).ok());
    ASSERT_TRUE(reducing->Synchronize().ok());
    ASSERT_TRUE(g.AllGather(shard_tensor, full_tensor, *gathering).ok());
    ASSERT_TRUE(gathering->Synchronize().ok());
    EXPECT_FALSE(g.AllGather(full_tensor, full_tensor, *gathering).ok());  // Refused, so not recorded.
    ASSERT_TRUE(r.ReduceScatterSum(full_tensor, shard_tensor, *reducing).ok());
    const std::vector<ElementRange> halves = {{0, 4}, {4, 6}}, of_rank = {{0, 4 - 2 * rank}, {4, 8 - 2 * rank}};
    ASSERT_TRUE(r.AllToAll({shard_tensor, halves}, {full_tensor, of_rank}, *reducing).ok());
    ASSERT_TRUE(reducing->Synchronize().ok());
  });
  for (const CollectiveTrace& trace : traces) {
    EXPECT_THAT(trace.records(),
                ElementsAre(CollectiveRecord{CollectiveKind::kAllReduceSum, DType::kInt64, 1, "reduce"},
                            CollectiveRecord{CollectiveKind::kAllGather, DType::kFloat32, 12, "gather"},
                            CollectiveRecord{CollectiveKind::kReduceScatterSum, DType::kFloat32, 12, "reduce"},
                            CollectiveRecord{CollectiveKind::kAllToAll, DType::kFloat32, 6, "reduce"}));
    EXPECT_EQ(trace.records()[1].bytes(), 48);
    EXPECT_EQ(ToString(trace.records()[1]), "gather AllGather 12 f32");
  }
  traces[0].Clear();
  EXPECT_TRUE(traces[0].records().empty());
}

TEST(TracingTest, AbortReachesTheGroup) {
  CollectiveTrace trace;
  Group group = *CreateInProcessGroup(2);
  TracingCommunicator traced(std::move(group[0]), &trace);
  traced.Abort(absl::CancelledError("enough"));
  CpuDevice device({.synchronous = true});
  std::unique_ptr<Stream> stream = *device.CreateStream("r");
  float x = 0;
  EXPECT_EQ(group[1]->AllReduceSum(Tensor::Contiguous(DType::kFloat32, {1}, &x), *stream).code(),
            absl::StatusCode::kAborted);
}

}  // namespace
}  // namespace shale
