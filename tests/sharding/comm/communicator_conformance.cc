#include "tests/sharding/comm/communicator_conformance.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"

namespace shale {
namespace {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CommunicatorConformance);

// Returns element i of a rank. Sums of such elements are exact in every type, in any order.
template <class T>
T Value(int rank, int64_t i) {
  return static_cast<T>((rank + 1) * 1000 + i % 997);
}
template <class T>
T SumOfValues(int ranks, int64_t i) {
  T sum = 0;
  for (int rank = 0; rank < ranks; ++rank) sum += Value<T>(rank, i);
  return sum;
}

// Sizes around cache lines and around the blocks of the sums.
constexpr int64_t kSizes[] = {0, 1, 3, 15, 16, 17, 1000, 4099};

template <class T>
void CheckAllGatherOf(Communicator& communicator, Device& device, Stream& stream) {
  const int rank = communicator.rank(), size = communicator.size();
  for (int64_t n : kSizes) {
    for (bool in_place : {false, true}) {
      std::vector<T> values(n * size), expected(n * size);
      for (int64_t i = 0; i < n; ++i) values[rank * n + i] = Value<T>(rank, i);
      for (int64_t i = 0; i < n * size; ++i) expected[i] = Value<T>(i / n, i % n);
      const DeviceVector<T> from(device, values, stream), to(device, n * size);
      const DeviceVector<T>& full = in_place ? from : to;
      ASSERT_TRUE(communicator.AllGather(from.View(rank * n, n), full.View(), stream).ok());
      ASSERT_EQ(FirstDifference(full.Read(stream), expected), -1) << n * size << " elements";
    }
  }
}

TEST_P(CommunicatorConformance, AllGatherJoinsTheShardsInRankOrder) {
  for (int size : {1, 2, 3, 4, 8}) {
    Group group = CreateGroup(size);
    ForEachRank(size, [&](int rank) {
      std::unique_ptr<Stream> stream = *device_->CreateStream("gather");
      CheckAllGatherOf<float>(*group[rank], *device_, *stream);
      CheckAllGatherOf<double>(*group[rank], *device_, *stream);
      CheckAllGatherOf<int16_t>(*group[rank], *device_, *stream);
      CheckAllGatherOf<int32_t>(*group[rank], *device_, *stream);
      CheckAllGatherOf<int64_t>(*group[rank], *device_, *stream);
    });
  }
}

TEST_P(CommunicatorConformance, ReduceScatterSumGivesEachRankTheSumOfItsShard) {
  for (int size : {1, 2, 3, 4, 8}) {
    Group group = CreateGroup(size);
    ForEachRank(size, [&](int rank) {
      std::unique_ptr<Stream> stream = *device_->CreateStream("reduce");
      for (int64_t n : kSizes) {
        for (bool in_place : {false, true}) {
          std::vector<float> values(n * size), expected(n);
          for (int64_t i = 0; i < n * size; ++i) values[i] = Value<float>(rank, i);
          for (int64_t i = 0; i < n; ++i) expected[i] = SumOfValues<float>(size, rank * n + i);
          const DeviceVector<float> full(*device_, values, *stream), elsewhere(*device_, n * size);
          const DeviceVector<float>& to = in_place ? full : elsewhere;
          ASSERT_TRUE(group[rank]->ReduceScatterSum(full.View(), to.View(rank * n, n), *stream).ok());
          const std::vector<float> all = to.Read(*stream);
          values.assign(all.begin() + rank * n, all.begin() + (rank + 1) * n);
          ASSERT_EQ(FirstDifference(values, expected), -1) << n << " elements";
        }
      }
    });
  }
}

template <class T>
void CheckAllReduceOf(Communicator& communicator, Device& device, Stream& stream) {
  for (int64_t n : kSizes) {
    std::vector<T> values(n), expected(n);
    for (int64_t i = 0; i < n; ++i) {
      values[i] = Value<T>(communicator.rank(), i);
      expected[i] = SumOfValues<T>(communicator.size(), i);
    }
    const DeviceVector<T> data(device, values, stream);
    ASSERT_TRUE(communicator.AllReduceSum(data.View(), stream).ok());
    ASSERT_EQ(FirstDifference(data.Read(stream), expected), -1) << n << " elements";
  }
}

TEST_P(CommunicatorConformance, AllReduceSumGivesEveryRankTheSum) {
  for (int size : {1, 2, 3, 4, 8}) {
    Group group = CreateGroup(size);
    ForEachRank(size, [&](int rank) {
      std::unique_ptr<Stream> stream = *device_->CreateStream("reduce");
      CheckAllReduceOf<float>(*group[rank], *device_, *stream);
      CheckAllReduceOf<double>(*group[rank], *device_, *stream);
      CheckAllReduceOf<int64_t>(*group[rank], *device_, *stream);
    });
  }
}

TEST_P(CommunicatorConformance, AllReduceSumHasEqualBitsOnAllRanks) {
  constexpr int kRanks = 5;
  constexpr int64_t kElements = 10001;
  Group group = CreateGroup(kRanks);
  ForEachRank(kRanks, [&](int rank) {
    std::unique_ptr<Stream> stream = *device_->CreateStream("reduce");
    std::mt19937 random(rank);
    std::normal_distribution<float> normal(0, 1e3);
    std::vector<float> data(kElements);
    for (float& x : data) x = normal(random);
    const DeviceVector<float> own(*device_, data, *stream), all(*device_, kElements * kRanks);
    ASSERT_TRUE(group[rank]->AllReduceSum(own.View(), *stream).ok());
    ASSERT_TRUE(group[rank]->AllGather(own.View(), all.View(), *stream).ok());
    data = own.Read(*stream);
    const std::vector<float> of_all = all.Read(*stream);
    for (int peer = 0; peer < kRanks; ++peer) {
      EXPECT_EQ(std::memcmp(of_all.data() + peer * kElements, data.data(), kElements * sizeof(float)), 0) << peer;
    }
  });
}

// All work is enqueued without waiting in between. Each collective must find what the stream wrote before it, and all
// ranks must have read what the stream overwrites after it.
TEST_P(CommunicatorConformance, AFinishedCollectiveNeedsItsInputsNoMore) {
  constexpr int kRanks = 3, kRounds = 100;
  constexpr int64_t n = 2000;
  Group group = CreateGroup(kRanks);
  ForEachRank(kRanks, [&](int rank) {
    std::unique_ptr<Stream> stream = *device_->CreateStream("gather");
    std::vector<int64_t> values(n * kRounds);
    for (int64_t i = 0; i < n * kRounds; ++i) values[i] = 100 * (i / n) + rank;
    const DeviceVector<int64_t> rounds(*device_, values, *stream), shard(*device_, n);
    const DeviceVector<int64_t> results(*device_, n * kRanks * kRounds);
    for (int round = 0; round < kRounds; ++round) {
      ASSERT_TRUE(stream->Copy(shard.data(), rounds.data() + round * n, n * 8).ok());
      const Tensor result = results.View(round * n * kRanks, n * kRanks);
      ASSERT_TRUE(group[rank]->AllGather(shard.View(), result, *stream).ok());
    }
    std::vector<int64_t> expected(n * kRanks * kRounds);
    for (int64_t i = 0; i < std::ssize(expected); ++i) expected[i] = 100 * (i / (n * kRanks)) + i / n % kRanks;
    ASSERT_EQ(FirstDifference(results.Read(*stream), expected), -1);
  });
}

// Runs a long random sequence of collectives, some in place, in two groups on two streams of each rank, and compares
// with the same sequence computed on all ranks' data at once.
TEST_P(CommunicatorConformance, RandomSequencesOnTwoGroupsMatchWhatTheySay) {
  constexpr int kSteps = 150;
  constexpr int64_t kMaxShard = 700;
  for (int size : {2, 3, 8}) {
    Group groups[2] = {CreateGroup(size), CreateGroup(size)};
    ForEachRank(size, [&](int rank) {
      SCOPED_TRACE(absl::StrCat("rank ", rank, " of ", size));
      std::unique_ptr<Stream> streams[2] = {*device_->CreateStream("a"), *device_->CreateStream("b")};
      // The vectors of all ranks, which every rank can compute. This rank's vector on the device is in `own`.
      std::vector<std::vector<float>> all[2];
      std::vector<DeviceVector<float>> own;
      std::mt19937 random(size);  // The same on every rank.
      for (int g = 0; g < 2; ++g) {
        all[g].assign(size, std::vector<float>(kMaxShard * size));
        for (auto& vector : all[g]) {
          for (float& x : vector) x = static_cast<float>(random() % 16);
        }
        own.emplace_back(*device_, all[g][rank], *streams[g]);
      }
      for (int step = 0; step < kSteps; ++step) {
        const int g = random() % 2, kind = random() % 3;
        const int64_t n = random() % kMaxShard;
        Communicator& communicator = *groups[g][rank];
        std::vector<std::vector<float>> before = all[g];
        if (kind == 0) {
          ASSERT_TRUE(communicator.AllGather(own[g].View(rank * n, n), own[g].View(0, n * size), *streams[g]).ok());
          for (auto& vector : all[g]) {
            for (int64_t i = 0; i < n * size; ++i) vector[i] = before[i / n][i];
          }
        } else if (kind == 1) {
          ASSERT_TRUE(
              communicator.ReduceScatterSum(own[g].View(0, n * size), own[g].View(rank * n, n), *streams[g]).ok());
          for (int r = 0; r < size; ++r) {
            for (int64_t i = r * n; i < (r + 1) * n; ++i) {
              all[g][r][i] = 0;
              for (const auto& vector : before) all[g][r][i] += vector[i];
            }
          }
        } else {
          ASSERT_TRUE(communicator.AllReduceSum(own[g].View(0, n), *streams[g]).ok());
          for (int64_t i = 0; i < n; ++i) {
            float sum = 0;
            for (const auto& vector : before) sum += vector[i];
            for (auto& vector : all[g]) vector[i] = sum;
          }
        }
        if (step % 20 != 19) continue;
        // Compares, and starts again before the sums grow inexact.
        for (int h = 0; h < 2; ++h) {
          ASSERT_EQ(own[h].Read(*streams[h]), all[h][rank]) << "after step " << step;
          for (auto& vector : all[h]) {
            for (float& x : vector) x = static_cast<float>(random() % 16);
          }
          own[h].Write(all[h][rank], *streams[h]);
        }
      }
      for (auto& stream : streams) ASSERT_TRUE(stream->Synchronize().ok());
    });
  }
}

TEST_P(CommunicatorConformance, OperandsThatDoNotFitAreRefusedAndNothingIsEnqueued) {
  Group group = CreateGroup(2);
  if (group[0] == nullptr) return;
  std::unique_ptr<Stream> stream = *device_->CreateStream("gather");
  const DeviceVector<float> full(*device_, 20), shard(*device_, 10);
  const DeviceVector<int32_t> integers(*device_, 20);
  Communicator& communicator = *group[0];
  const auto refused = [](const absl::Status& status, absl::string_view because) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(because), absl::string_view::npos) << status;
  };
  refused(communicator.AllGather(shard.View(0, 9), full.View(), *stream), "2 times the elements of shard f32[9]");
  refused(communicator.AllGather(shard.View(), full.View(0, 19), *stream), "2 times the elements");
  refused(communicator.AllGather(integers.View(0, 10), full.View(), *stream), "differ in type");
  refused(communicator.AllGather(full.View(10, 10), full.View(), *stream), "not lie at the place of shard 0");
  refused(communicator.AllGather(full.View(5, 10), full.View(), *stream), "not lie at the place of shard 0");
  refused(communicator.AllGather(Tensor(), full.View(), *stream), "shard is absent");
  refused(communicator.AllGather(Tensor::Contiguous(DType::kFloat32, {10}), full.View(), *stream), "not bound");
  refused(communicator.ReduceScatterSum(integers.View(), integers.View(0, 10), *stream), "found i32");
  refused(communicator.ReduceScatterSum(full.View(), full.View(1, 10), *stream), "not lie at the place of shard 0");
  refused(communicator.AllReduceSum(integers.View(), *stream), "found i32");
  const Tensor columns = Tensor::Contiguous(DType::kFloat32, {4, 5}, full.data()).Slice(1, 0, 2);
  refused(communicator.AllReduceSum(columns, *stream), "not contiguous");
  EXPECT_TRUE(stream->Synchronize().ok());
}

}  // namespace
}  // namespace shale
