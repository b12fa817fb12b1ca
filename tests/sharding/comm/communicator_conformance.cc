#include "tests/sharding/comm/communicator_conformance.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <type_traits>

#include "absl/strings/str_cat.h"

namespace shale {
namespace {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CommunicatorConformance);

template <class T>
constexpr DType kDTypeOf = std::is_same_v<T, float>     ? DType::kFloat32
                           : std::is_same_v<T, double>  ? DType::kFloat64
                           : std::is_same_v<T, int64_t> ? DType::kInt64
                           : std::is_same_v<T, int32_t> ? DType::kInt32
                                                        : DType::kInt16;

template <class T>
Tensor View(std::vector<T>& values, int64_t begin, int64_t count) {
  return Tensor::Contiguous(kDTypeOf<T>, {count}, values.data() + begin);
}
template <class T>
Tensor View(std::vector<T>& values) {
  return View(values, 0, std::ssize(values));
}

// Element i of rank r. Sums of them are exact in every type, in any order.
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

// Around cache lines and blocks of the sums.
constexpr int64_t kSizes[] = {0, 1, 3, 15, 16, 17, 1000, 4099};

template <class T>
void CheckAllGatherOf(Communicator& communicator, Stream& stream) {
  const int rank = communicator.rank(), size = communicator.size();
  for (int64_t n : kSizes) {
    for (bool in_place : {false, true}) {
      std::vector<T> shard(n), full(n * size);
      T* own = in_place ? full.data() + rank * n : shard.data();
      for (int64_t i = 0; i < n; ++i) own[i] = Value<T>(rank, i);
      ASSERT_TRUE(communicator.AllGather(Tensor::Contiguous(kDTypeOf<T>, {n}, own), View(full), stream).ok());
      ASSERT_TRUE(stream.Synchronize().ok());
      for (int64_t i = 0; i < n * size; ++i) ASSERT_EQ(full[i], Value<T>(i / n, i % n)) << i << " of " << n * size;
    }
  }
}

TEST_P(CommunicatorConformance, AllGatherJoinsTheShardsInRankOrder) {
  for (int size : {1, 2, 3, 4, 8}) {
    Group group = CreateGroup(size);
    ForEachRank(size, [&](int rank) {
      std::unique_ptr<Stream> stream = *device_->CreateStream("gather");
      CheckAllGatherOf<float>(*group[rank], *stream);
      CheckAllGatherOf<double>(*group[rank], *stream);
      CheckAllGatherOf<int16_t>(*group[rank], *stream);
      CheckAllGatherOf<int32_t>(*group[rank], *stream);
      CheckAllGatherOf<int64_t>(*group[rank], *stream);
    });
  }
}

TEST_P(CommunicatorConformance, ReduceScatterSumGivesEachRankTheSumOfItsSlice) {
  for (int size : {1, 2, 3, 4, 8}) {
    Group group = CreateGroup(size);
    ForEachRank(size, [&](int rank) {
      std::unique_ptr<Stream> stream = *device_->CreateStream("reduce");
      for (int64_t n : kSizes) {
        for (bool in_place : {false, true}) {
          std::vector<float> full(n * size), shard(n);
          for (int64_t i = 0; i < n * size; ++i) full[i] = Value<float>(rank, i);
          float* own = in_place ? full.data() + rank * n : shard.data();
          ASSERT_TRUE(
              group[rank]->ReduceScatterSum(View(full), Tensor::Contiguous(DType::kFloat32, {n}, own), *stream).ok());
          ASSERT_TRUE(stream->Synchronize().ok());
          for (int64_t i = 0; i < n; ++i) ASSERT_EQ(own[i], SumOfValues<float>(size, rank * n + i)) << i << " of " << n;
        }
      }
    });
  }
}

template <class T>
void CheckAllReduceOf(Communicator& communicator, Stream& stream) {
  for (int64_t n : kSizes) {
    std::vector<T> data(n);
    for (int64_t i = 0; i < n; ++i) data[i] = Value<T>(communicator.rank(), i);
    ASSERT_TRUE(communicator.AllReduceSum(View(data), stream).ok());
    ASSERT_TRUE(stream.Synchronize().ok());
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(data[i], SumOfValues<T>(communicator.size(), i)) << i << " of " << n;
  }
}

TEST_P(CommunicatorConformance, AllReduceSumGivesEveryRankTheSum) {
  for (int size : {1, 2, 3, 4, 8}) {
    Group group = CreateGroup(size);
    ForEachRank(size, [&](int rank) {
      std::unique_ptr<Stream> stream = *device_->CreateStream("reduce");
      CheckAllReduceOf<float>(*group[rank], *stream);
      CheckAllReduceOf<double>(*group[rank], *stream);
      CheckAllReduceOf<int64_t>(*group[rank], *stream);
    });
  }
}

TEST_P(CommunicatorConformance, AllReduceSumHasEqualBitsOnAllRanks) {
  constexpr int kRanks = 5;
  constexpr int64_t kElements = 10001;
  Group group = CreateGroup(kRanks);
  std::vector<std::vector<float>> data(kRanks, std::vector<float>(kElements));
  ForEachRank(kRanks, [&](int rank) {
    std::unique_ptr<Stream> stream = *device_->CreateStream("reduce");
    std::mt19937 random(rank);
    std::normal_distribution<float> normal(0, 1e3);
    for (float& x : data[rank]) x = normal(random);
    ASSERT_TRUE(group[rank]->AllReduceSum(View(data[rank]), *stream).ok());
    ASSERT_TRUE(stream->Synchronize().ok());
  });
  for (int rank = 1; rank < kRanks; ++rank) {
    EXPECT_EQ(std::memcmp(data[rank].data(), data[0].data(), kElements * sizeof(float)), 0) << rank;
  }
}

// Enqueued without any waiting in between: each collective finds what the stream wrote before, and what the stream
// overwrites after it has been read by everybody.
TEST_P(CommunicatorConformance, AFinishedCollectiveNeedsItsInputsNoMore) {
  constexpr int kRanks = 3, kRounds = 100;
  constexpr int64_t n = 2000;
  Group group = CreateGroup(kRanks);
  ForEachRank(kRanks, [&](int rank) {
    std::unique_ptr<Stream> stream = *device_->CreateStream("gather");
    std::vector<std::vector<int64_t>> rounds(kRounds, std::vector<int64_t>(n));
    std::vector<std::vector<int64_t>> results(kRounds, std::vector<int64_t>(n * kRanks));
    std::vector<int64_t> shard(n);
    for (int round = 0; round < kRounds; ++round) {
      std::fill(rounds[round].begin(), rounds[round].end(), 100 * round + rank);
      ASSERT_TRUE(stream->Copy(shard.data(), rounds[round].data(), n * 8).ok());
      ASSERT_TRUE(group[rank]->AllGather(View(shard), View(results[round]), *stream).ok());
    }
    ASSERT_TRUE(stream->Synchronize().ok());
    for (int round = 0; round < kRounds; ++round) {
      for (int64_t i = 0; i < n * kRanks; ++i) ASSERT_EQ(results[round][i], 100 * round + i / n) << "round " << round;
    }
  });
}

// Two groups on two streams of each rank, a long random sequence of collectives, some in place, against the same
// sequence computed on all ranks' data at once.
TEST_P(CommunicatorConformance, RandomSequencesOnTwoGroupsMatchWhatTheySay) {
  constexpr int kSteps = 150;
  constexpr int64_t kMaxSlice = 700;
  for (int size : {2, 3, 8}) {
    Group groups[2] = {CreateGroup(size), CreateGroup(size)};
    ForEachRank(size, [&](int rank) {
      SCOPED_TRACE(absl::StrCat("rank ", rank, " of ", size));
      std::unique_ptr<Stream> streams[2] = {*device_->CreateStream("a"), *device_->CreateStream("b")};
      // All ranks' vectors, as every rank can compute them; this rank's is in `own`.
      std::vector<std::vector<float>> all[2];
      std::vector<float> own[2];
      std::mt19937 random(size);  // The same on every rank.
      for (int g = 0; g < 2; ++g) {
        all[g].assign(size, std::vector<float>(kMaxSlice * size));
        for (auto& vector : all[g]) {
          for (float& x : vector) x = static_cast<float>(random() % 16);
        }
        own[g] = all[g][rank];
      }
      for (int step = 0; step < kSteps; ++step) {
        const int g = random() % 2, kind = random() % 3;
        const int64_t n = random() % kMaxSlice;
        Communicator& communicator = *groups[g][rank];
        std::vector<std::vector<float>> before = all[g];
        if (kind == 0) {
          ASSERT_TRUE(communicator.AllGather(View(own[g], rank * n, n), View(own[g], 0, n * size), *streams[g]).ok());
          for (auto& vector : all[g]) {
            for (int64_t i = 0; i < n * size; ++i) vector[i] = before[i / n][i];
          }
        } else if (kind == 1) {
          ASSERT_TRUE(
              communicator.ReduceScatterSum(View(own[g], 0, n * size), View(own[g], rank * n, n), *streams[g]).ok());
          for (int r = 0; r < size; ++r) {
            for (int64_t i = r * n; i < (r + 1) * n; ++i) {
              all[g][r][i] = 0;
              for (const auto& vector : before) all[g][r][i] += vector[i];
            }
          }
        } else {
          ASSERT_TRUE(communicator.AllReduceSum(View(own[g], 0, n), *streams[g]).ok());
          for (int64_t i = 0; i < n; ++i) {
            float sum = 0;
            for (const auto& vector : before) sum += vector[i];
            for (auto& vector : all[g]) vector[i] = sum;
          }
        }
        if (step % 20 != 19) continue;
        // Compare, and start again before the sums grow inexact.
        for (int h = 0; h < 2; ++h) {
          ASSERT_TRUE(streams[h]->Synchronize().ok());
          ASSERT_EQ(own[h], all[h][rank]) << "after step " << step;
          for (auto& vector : all[h]) {
            for (float& x : vector) x = static_cast<float>(random() % 16);
          }
          own[h] = all[h][rank];
        }
      }
      for (auto& stream : streams) ASSERT_TRUE(stream->Synchronize().ok());
    });
  }
}

TEST_P(CommunicatorConformance, OperandsThatDoNotFitAreRefusedAndNothingIsEnqueued) {
  Group group = CreateGroup(2);
  std::unique_ptr<Stream> stream = *device_->CreateStream("gather");
  std::vector<float> full(20), shard(10);
  std::vector<int32_t> integers(20);
  Communicator& communicator = *group[0];
  const auto refused = [](const absl::Status& status, absl::string_view because) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(because), absl::string_view::npos) << status;
  };
  refused(communicator.AllGather(View(shard, 0, 9), View(full), *stream), "2 times the elements of shard f32[9]");
  refused(communicator.AllGather(View(shard), View(full, 0, 19), *stream), "2 times the elements");
  refused(communicator.AllGather(View(integers, 0, 10), View(full), *stream), "differ in type");
  refused(communicator.AllGather(View(full, 10, 10), View(full), *stream), "not its slice 0");
  refused(communicator.AllGather(View(full, 5, 10), View(full), *stream), "not its slice 0");
  refused(communicator.AllGather(Tensor(), View(full), *stream), "shard is absent");
  refused(communicator.AllGather(Tensor::Contiguous(DType::kFloat32, {10}), View(full), *stream), "not bound");
  refused(communicator.ReduceScatterSum(View(integers), View(integers, 0, 10), *stream), "found i32");
  refused(communicator.ReduceScatterSum(View(full), View(full, 1, 10), *stream), "not its slice 0");
  refused(communicator.AllReduceSum(View(integers), *stream), "found i32");
  const Tensor columns = Tensor::Contiguous(DType::kFloat32, {4, 5}, full.data()).Slice(1, 0, 2);
  refused(communicator.AllReduceSum(columns, *stream), "not contiguous");
  EXPECT_TRUE(stream->Synchronize().ok());
}

}  // namespace
}  // namespace shale
