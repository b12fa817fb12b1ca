#include "sharding/comm/in_process.h"

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "kernels/device/cpu/copy_bytes.h"
#include "kernels/device/cpu/cpu_device.h"
#include "tests/sharding/comm/communicator_conformance.h"
#include "tests/sharding/comm/run_ranks.h"

namespace shale {
namespace {

using ::testing::HasSubstr;

Group Create(int size, double timeout_seconds = 0) {
  absl::StatusOr<Group> group = CreateInProcessGroup(size, {.timeout_seconds = timeout_seconds});
  EXPECT_TRUE(group.ok()) << group.status();
  return *std::move(group);
}

INSTANTIATE_TEST_SUITE_P(
    InProcess, CommunicatorConformance,
    ::testing::Values(CommunicatorCase{"Threads", [] { return CreateCpuDevice(); },
                                       [](int size, Device&) { return Create(size); }},
                      CommunicatorCase{"ShallowQueues", [] { return CreateCpuDevice({.queue_depth = 2}); },
                                       [](int size, Device&) { return Create(size, 600); }},
                      CommunicatorCase{"Synchronous", [] { return CreateCpuDevice({.synchronous = true}); },
                                       [](int size, Device&) { return Create(size); }}),
    CaseName);

TEST(InProcessGroupTest, SumsAreFormedInRankOrderInFloat32) {
  constexpr int kRanks = 6;
  constexpr int64_t n = 3001;
  Group group = Create(kRanks);
  std::vector<std::vector<float>> data(kRanks, std::vector<float>(n * kRanks));
  std::mt19937 random(7);
  std::lognormal_distribution<float> wide(0, 8);
  for (auto& vector : data) {
    for (float& x : vector) x = random() % 2 == 0 ? wide(random) : -wide(random);
  }
  std::vector<float> expected = data[0];
  for (int rank = 1; rank < kRanks; ++rank) {
    for (int64_t i = 0; i < n * kRanks; ++i) expected[i] += data[rank][i];
  }
  std::vector<std::vector<float>> shards(kRanks, std::vector<float>(n));
  for (const absl::Status& status : RunRanks(kRanks, [&](int rank, Stream&stream) {
         const Tensor full = Tensor::Contiguous(DType::kFloat32, {n * kRanks}, data[rank].data());
         const Tensor shard = Tensor::Contiguous(DType::kFloat32, {n}, shards[rank].data());
         absl::Status status = group[rank]->ReduceScatterSum(full, shard, stream);
         if (status.ok()) status = group[rank]->AllReduceSum(full, stream);
         return status;
       })) {
    ASSERT_TRUE(status.ok()) << status;
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(std::memcmp(shards[rank].data(), expected.data() + rank * n, n * sizeof(float)), 0);
    EXPECT_EQ(std::memcmp(data[rank].data(), expected.data(), n * kRanks * sizeof(float)), 0);
  }
}

// Large shards are copied in another way, and here their ends lie within cache lines.
TEST(InProcessGroupTest, GathersAndSumsLargeVectors) {
  constexpr int kRanks = 3;
  constexpr int64_t kShard = kLargeCopyBytes / sizeof(int64_t) + 3, kAll = kRanks * kShard;
  Group group = Create(kRanks);
  std::vector<std::vector<int64_t>> own(kRanks), gathered(kRanks), summed(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    for (int64_t i = 0; i < kShard; ++i) own[rank].push_back(i * 7 + rank);
    for (int64_t i = 0; i < kAll; ++i) summed[rank].push_back(i * 3 + rank);
    gathered[rank].resize(kAll);
  }
  const auto tensor = [](std::vector<int64_t>& data) {
    return Tensor::Contiguous(DType::kInt64, {static_cast<int64_t>(data.size())}, data.data());
  };
  for (const absl::Status& status : RunRanks(kRanks, [&](int rank, Stream&stream) {
         absl::Status status = group[rank]->AllGather(tensor(own[rank]), tensor(gathered[rank]), stream);
         return status.ok() ? group[rank]->AllReduceSum(tensor(summed[rank]), stream) : status;
       })) {
    ASSERT_TRUE(status.ok()) << status;
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    for (int64_t i = 0; i < kAll; ++i) {
      ASSERT_EQ(gathered[rank][i], i % kShard * 7 + i / kShard) << rank << " " << i;
      ASSERT_EQ(summed[rank][i], i * 3 * kRanks + 3) << rank << " " << i;
    }
  }
}

TEST(InProcessGroupTest, ANaNOfOneRankReachesAll) {
  Group group = Create(2);
  float data[2] = {1.0f, std::nanf("")};
  for (const absl::Status& status : RunRanks(2, [&](int rank, Stream&stream) {
         return group[rank]->AllReduceSum(Tensor::Contiguous(DType::kFloat32, {1}, &data[rank]), stream);
       })) {
    ASSERT_TRUE(status.ok()) << status;
  }
  EXPECT_TRUE(std::isnan(data[0]) && std::isnan(data[1]));
}

TEST(InProcessGroupTest, RanksThatWantDifferentThingsAreToldWhoWantedWhat) {
  struct Case {
    std::function<absl::Status(Communicator&, Stream&)> odd;  // What rank 1 of three does.
    std::string message;
  };
  std::vector<float> memory(90);
  const auto f32 = [&](int rank, int64_t n) { return Tensor::Contiguous(DType::kFloat32, {n}, &memory[30 * rank]); };
  const Case cases[] = {
      {[&](Communicator& c, Stream& s) { return c.AllReduceSum(f32(1, 13), s); },
       "disagree about collective 2: ranks 0, 2 want AllReduceSum of 12 f32; rank 1 wants AllReduceSum of 13 f32"},
      {[&](Communicator& c, Stream& s) { return c.ReduceScatterSum(f32(1, 12), f32(1, 12).Slice(0, 4, 4), s); },
       "rank 1 wants ReduceScatterSum of 12 f32"},
      {[&](Communicator& c, Stream& s) {
         return c.AllReduceSum(Tensor::Contiguous(DType::kFloat64, {12}, &memory[30]), s);
       },
       "rank 1 wants AllReduceSum of 12 f64"},
  };
  for (const Case& odd : cases) {
    Group group = Create(3);
    for (const absl::Status& status : RunRanks(3, [&](int rank, Stream&stream) {
           absl::Status first = group[rank]->AllReduceSum(f32(rank, 5), stream);
           if (!first.ok()) return first;
           return rank == 1 ? odd.odd(*group[rank], stream) : group[rank]->AllReduceSum(f32(rank, 12), stream);
         })) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()), HasSubstr(odd.message));
    }
    // The group stays failed.
    for (const absl::Status& status :
         RunRanks(3, [&](int rank, Stream&stream) { return group[rank]->AllReduceSum(f32(rank, 5), stream); })) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    }
  }
}

TEST(InProcessGroupTest, RanksThatDisagreeAboutAPieceAreTold) {
  for (const int ranks : {2, 5}) {
    CpuDevice device;
    Group group = Create(ranks);
    ExpectDifferentPiecesAreRefused(group, device);
  }
}

TEST(InProcessGroupTest, ARankThatDoesNotComeIsNamed) {
  Group group = Create(4, 2);
  std::vector<float> memory(400);
  const std::vector<absl::Status> statuses = RunRanks(4, [&](int rank, Stream& stream) {
    if (rank == 1 || rank == 3) return absl::OkStatus();
    return group[rank]->AllReduceSum(Tensor::Contiguous(DType::kFloat32, {100}, &memory[100 * rank]), stream);
  });
  for (int rank : {0, 2}) {
    EXPECT_EQ(statuses[rank].code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(statuses[rank].message()),
                HasSubstr("waited 2 s for ranks 1, 3 in collective 1, AllReduceSum of 100 f32"));
  }
}

TEST(InProcessGroupTest, AnAbortNamesTheRankAndPassesOnWhatItWasTold) {
  Group group = Create(2);
  group[1]->Abort(absl::ResourceExhaustedError("no memory"));
  const std::vector<absl::Status> statuses = RunRanks(2, [&](int rank, Stream& stream) {
    float x = 0;
    absl::Status status = group[rank]->AllReduceSum(Tensor::Contiguous(DType::kFloat32, {1}, &x), stream);
    return status.ok() ? stream.Synchronize() : status;
  });
  EXPECT_EQ(statuses[0], absl::AbortedError("rank 1 aborted: RESOURCE_EXHAUSTED: no memory"));
  EXPECT_EQ(statuses[1], statuses[0]);
}

TEST(InProcessGroupTest, RefusesGroupsThatCannotBe) {
  EXPECT_EQ(CreateInProcessGroup(0).status().code(), absl::StatusCode::kInvalidArgument);
  for (double seconds : {-1.0, std::nan(""), static_cast<double>(INFINITY)}) {
    EXPECT_EQ(CreateInProcessGroup(2, {.timeout_seconds = seconds}).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace shale
