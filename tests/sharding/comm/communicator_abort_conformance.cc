// Tests how a group ends when a rank fails.

#include <algorithm>
#include <random>

#include "tests/sharding/comm/communicator_conformance.h"

namespace shale {
namespace {

// Returns the error of the call that enqueued the collective, or else the status of its stream.
absl::Status AllReduce(Communicator& communicator, const DeviceVector<float>& data, Stream& stream) {
  const absl::Status enqueued = communicator.AllReduceSum(data.View(), stream);
  const absl::Status ran = stream.Synchronize();
  return enqueued.ok() ? ran : enqueued;
}

TEST_P(CommunicatorConformance, AbortEndsTheCollectivesOfAllRanksNowAndLater) {
  if (!GetParam().aborts_reach_all) GTEST_SKIP();
  constexpr int kRanks = 3;
  Group group = CreateGroup(kRanks);
  // All ranks have finished a collective before one aborts. Ranks of other processes may still be in it.
  const bool all_here = std::none_of(group.begin(), group.end(), [](const auto& rank) { return rank == nullptr; });
  ForEachRank(kRanks, [&](int rank) {
    std::unique_ptr<Stream> stream = *device_->CreateStream("reduce");
    const DeviceVector<float> data(*device_, 100);
    const absl::Status status = AllReduce(*group[rank], data, *stream);
    ASSERT_TRUE(status.ok() || (!all_here && absl::IsAborted(status))) << status;
  });
  ForEachRank(kRanks, [&](int rank) {
    const DeviceVector<float> data(*device_, 100);
    if (rank == 1) {
      group[rank]->Abort(absl::DataLossError("disk full"));
      group[rank]->Abort(absl::InternalError("a later reason"));
    }
    for (int i = 0; i < 2; ++i) {
      std::unique_ptr<Stream> another = *device_->CreateStream("reduce");
      const absl::Status status = AllReduce(*group[rank], data, *another);
      EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
      EXPECT_NE(status.message().find("disk full"), absl::string_view::npos) << status;
    }
  });
}

TEST_P(CommunicatorConformance, AMemberThatIsDestroyedAbortsTheOthers) {
  if (!GetParam().aborts_reach_all) GTEST_SKIP();
  constexpr int kRanks = 3;
  Group group = CreateGroup(kRanks);
  ForEachRank(kRanks, [&](int rank) {
    if (rank == 0) {
      group[rank].reset();
      return;
    }
    std::unique_ptr<Stream> stream = *device_->CreateStream("reduce");
    const DeviceVector<float> data(*device_, 100);
    EXPECT_EQ(AllReduce(*group[rank], data, *stream).code(), absl::StatusCode::kAborted);
  });
}

// A rank that is told of an abort frees its buffers at once, while peers may be in the middle of the last collective
// that all had begun. AddressSanitizer and ThreadSanitizer report reads of freed memory.
TEST_P(CommunicatorConformance, AnAbortLeavesNobodyReadingFreedMemory) {
  if (!GetParam().aborts_reach_all) GTEST_SKIP();
  constexpr int kRanks = 4;
  constexpr int64_t n = 50000;
  for (int round = 0; round < 15; ++round) {
    Group group = CreateGroup(kRanks);
    ForEachRank(kRanks, [&](int rank) {
      std::mt19937 random(round);
      const int last = 1 + random() % 6;
      absl::Status status;
      for (int i = 0; status.ok(); ++i) {
        std::unique_ptr<Stream> stream = *device_->CreateStream("reduce");
        const DeviceVector<float> data(*device_, n);
        if (rank == 0 && i == last) group[rank]->Abort(absl::CancelledError("stop"));
        status = AllReduce(*group[rank], data, *stream);
      }
      EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
    });
  }
}

}  // namespace
}  // namespace shale
