// Tests groups over Gloo whose "processes" are parts of this one: each has its own connections. gloo_process_test.cc
// has true processes.
#include "sharding/comm/gloo/gloo.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <thread>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "kernels/device/cpu/cpu_device.h"
#include "sharding/comm/in_process.h"
#include "tests/sharding/comm/communicator_conformance.h"
#include "tests/sharding/comm/folder_store.h"
#include "tests/sharding/comm/run_ranks.h"

namespace shale {
namespace {

using ::testing::HasSubstr;

// Returns an empty folder for one group.
std::string NewFolder() {
  static std::atomic<int> made = 0;
  const std::string folder = absl::StrCat(::testing::TempDir(), "/gloo_test_", getpid(), "_", ++made);
  std::filesystem::create_directories(folder);
  return folder;
}

// Creates the group in all its processes at once, each with its own options. Returns the communicators by rank.
Group CreateWith(const std::vector<int>& process_of_rank, absl::FunctionRef<GlooOptions(int process)> options_of) {
  std::map<int, std::vector<int>> ranks;
  for (int rank = 0; rank < std::ssize(process_of_rank); ++rank) ranks[process_of_rank[rank]].push_back(rank);
  FolderStore store(NewFolder());
  Group group(process_of_rank.size());
  std::vector<std::thread> threads;
  for (const auto& [process, local] : ranks) {
    threads.emplace_back([&, process = process, &local = local] {
      absl::StatusOr<Group> created = CreateGlooGroup(
          store, {.name = "all", .process = process, .process_of_rank = process_of_rank}, options_of(process));
      ASSERT_TRUE(created.ok()) << created.status();
      for (size_t i = 0; i < local.size(); ++i) group[local[i]] = std::move((*created)[i]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return group;
}

// Creates it with the same options in all processes.
Group Create(const std::vector<int>& process_of_rank, const GlooOptions& options = {.timeout_seconds = 600}) {
  return CreateWith(process_of_rank, [&](int /*process*/) { return options; });
}

std::vector<int> Blocks(int ranks, int processes) {
  std::vector<int> process_of_rank;
  for (int rank = 0; rank < ranks; ++rank) process_of_rank.push_back(rank * processes / ranks);
  return process_of_rank;
}

std::vector<int> Alternating(int ranks, int processes) {
  std::vector<int> process_of_rank;
  for (int rank = 0; rank < ranks; ++rank) process_of_rank.push_back(rank % processes);
  return process_of_rank;
}

const auto kDevice = [] { return CreateCpuDevice(); };
INSTANTIATE_TEST_SUITE_P(
    Gloo, CommunicatorConformance,
    ::testing::Values(
        CommunicatorCase{"OneRankEach", kDevice,
                         [](int size, Device&) { return *CreateGlooGroupOfThreads("all", size); }},
        CommunicatorCase{"OneProcess", kDevice, [](int size, Device&) { return Create(Blocks(size, 1)); }},
        CommunicatorCase{"OneRankEachOverTcp", kDevice,
                         [](int size, Device&) { return Create(Blocks(size, size), {.read_memory = false}); }},
        CommunicatorCase{"ThreeAlternatingWithLeastStaging", kDevice,
                         [](int size, Device&) { return Create(Alternating(size, 3), {.staging_bytes = 0}); }},
        CommunicatorCase{
            "ThreeAlternatingOverTcpWithLeastStaging", kDevice,
            [](int size, Device&) { return Create(Alternating(size, 3), {.staging_bytes = 0, .read_memory = false}); }},
        CommunicatorCase{"TwoProcessesSynchronous", [] { return CreateCpuDevice({.synchronous = true}); },
                         [](int size, Device&) { return Create(Blocks(size, 2)); }}),
    CaseName);

// Sums of numbers of very different size, in sizes around those of messages, have the bits of an in-process group.
TEST(GlooGroupTest, SumsHaveTheBitsOfAnInProcessGroup) {
  CpuDevice device;
  for (const auto& [process_of_rank, read_memory] :
       {std::pair(Blocks(2, 2), true), std::pair(Blocks(5, 2), true), std::pair(Alternating(6, 3), true),
        std::pair(Blocks(2, 2), false), std::pair(Alternating(6, 3), false)}) {
    const int ranks = static_cast<int>(process_of_rank.size());
    Group group = Create(process_of_rank, {.staging_bytes = 40000, .read_memory = read_memory});
    for (const int64_t n : {7, 1023, 1024, 1025, 60013}) {
      ExpectSumsInRankOrder(group, device, n);
      std::vector<std::vector<float>> data(ranks, std::vector<float>(n * ranks));
      std::mt19937 random(static_cast<uint32_t>(n));
      std::lognormal_distribution<float> wide(0, 8);
      for (auto& vector : data) {
        for (float& x : vector) x = random() % 2 == 0 ? wide(random) : -wide(random);
      }
      std::vector<std::vector<float>> in_process(ranks, std::vector<float>(n)), over_gloo = in_process;
      Group threads = *CreateInProcessGroup(ranks);
      for (auto [communicators, shards] : {std::pair(&threads, &in_process), std::pair(&group, &over_gloo)}) {
        for (const absl::Status& status : RunRanks(ranks, [&](int rank, Stream&stream) {
               return (*communicators)[rank]->ReduceScatterSum(
                   Tensor::Contiguous(DType::kFloat32, {n * ranks}, data[rank].data()),
                   Tensor::Contiguous(DType::kFloat32, {n}, (*shards)[rank].data()), stream);
             })) {
          ASSERT_TRUE(status.ok()) << status;
        }
      }
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(std::memcmp(over_gloo[rank].data(), in_process[rank].data(), n * sizeof(float)), 0) << rank;
      }
    }
  }
}

TEST(GlooGroupTest, BFloat16IsGatheredAsItIs) {
  constexpr int kRanks = 4;
  constexpr int64_t n = 10007;
  Group group = Create(Blocks(kRanks, 2));
  std::vector<std::vector<uint16_t>> shards(kRanks), full(kRanks, std::vector<uint16_t>(n * kRanks));
  std::vector<uint16_t> expected;
  for (int rank = 0; rank < kRanks; ++rank) {
    for (int64_t i = 0; i < n; ++i) shards[rank].push_back(static_cast<uint16_t>(i * 31 + rank * 7919));
    expected.insert(expected.end(), shards[rank].begin(), shards[rank].end());
  }
  for (const absl::Status& status : RunRanks(kRanks, [&](int rank, Stream&stream) {
         return group[rank]->AllGather(Tensor::Contiguous(DType::kBFloat16, {n}, shards[rank].data()),
                                       Tensor::Contiguous(DType::kBFloat16, {n * kRanks}, full[rank].data()), stream);
       })) {
    ASSERT_TRUE(status.ok()) << status;
  }
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(full[rank], expected) << rank;
}

// A collective of no elements is a barrier: nobody passes before the last rank has come.
TEST(GlooGroupTest, NoElementsAreABarrier) {
  constexpr int kRanks = 3;
  Group group = Create(Blocks(kRanks, 2));
  std::atomic<int> arrived = 0;
  for (const absl::Status& status : RunRanks(kRanks, [&](int rank, Stream&stream) -> absl::Status {
         for (int round = 1; round <= 20; ++round) {
           ++arrived;
           absl::Status status = group[rank]->AllReduceSum(Tensor::Contiguous(DType::kInt64, {0}, nullptr), stream);
           if (status.ok()) status = stream.Synchronize();
           if (!status.ok()) return status;
           EXPECT_GE(arrived.load(), kRanks * round);
         }
         return absl::OkStatus();
       })) {
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(GlooGroupTest, RanksThatWantDifferentThingsAreToldWhoWantedWhat) {
  // Ranks 1 and 2 are in one process. The sizes are those of small and of large collectives.
  for (const int64_t odd : {13, 100003}) {
    for (const int64_t n : {12, 100002}) {
      for (const int odd_rank : {0, 1, 3}) {
        Group group = Create({0, 1, 1, 2}, {.timeout_seconds = 60, .read_memory = odd_rank != 3});
        std::vector<std::vector<float>> data(4, std::vector<float>(std::max(odd, n)));
        for (const absl::Status& status : RunRanks(4, [&](int rank, Stream&stream) {
               const int64_t size = rank == odd_rank ? odd : n;
               return group[rank]->AllReduceSum(Tensor::Contiguous(DType::kFloat32, {size}, data[rank].data()), stream);
             })) {
          EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
          EXPECT_THAT(std::string(status.message()), HasSubstr("disagree about collective 1"));
          EXPECT_THAT(std::string(status.message()),
                      HasSubstr(absl::StrCat("rank ", odd_rank, " wants AllReduceSum of ", odd, " f32")));
        }
      }
    }
  }
}

TEST(GlooGroupTest, RanksThatComeToDifferentPlacesAreTold) {
  for (const int64_t n : {12, 100002}) {
    for (const int odd_rank : {0, 1, 3}) {
      Group group = Create({0, 1, 1, 2}, {.timeout_seconds = 60});
      std::vector<std::vector<float>> data(4, std::vector<float>(n));
      for (const absl::Status& status : RunRanks(4, [&](int rank, Stream&stream) {
             group[rank]->SetIssue({.run = 5, .instruction = rank == odd_rank ? 8 : 7, .iteration = 2});
             return group[rank]->AllReduceSum(Tensor::Contiguous(DType::kFloat32, {n}, data[rank].data()), stream);
           })) {
        EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
        EXPECT_THAT(std::string(status.message()),
                    HasSubstr(absl::StrCat("rank ", odd_rank, " wants AllReduceSum of ", n,
                                           " f32 for instruction 8 in iteration 2 of run 5")));
      }
    }
  }
}

// The two ranks that disagree are in one process, or in different ones.
TEST(GlooGroupTest, RanksThatDisagreeAboutAPieceAreTold) {
  CpuDevice device;
  for (const std::vector<int>& process_of_rank : {std::vector{0, 1, 1, 0}, std::vector{0, 1, 1, 2}}) {
    for (const bool read_memory : {false, true}) {
      Group group = Create(process_of_rank, {.timeout_seconds = 60, .read_memory = read_memory});
      ExpectDifferentPiecesAreRefused(group, device);
    }
  }
}

TEST(GlooGroupTest, ARankThatDoesNotComeIsNamed) {
  for (const int64_t n : {100, 100000}) {
    for (const bool read_memory : {false, true}) {
      Group group = Create({0, 1, 2, 3}, {.timeout_seconds = 0.5, .read_memory = read_memory});
      std::vector<std::vector<float>> data(4, std::vector<float>(n));
      const std::vector<absl::Status> statuses = RunRanks(4, [&](int rank, Stream& stream) {
        if (rank == 1 || rank == 3) return absl::OkStatus();
        return group[rank]->AllReduceSum(Tensor::Contiguous(DType::kFloat32, {n}, data[rank].data()), stream);
      });
      for (const int rank : {0, 2}) {
        EXPECT_EQ(statuses[rank].code(), absl::StatusCode::kDeadlineExceeded);
        EXPECT_THAT(
            std::string(statuses[rank].message()),
            HasSubstr(absl::StrCat("waited 0.5 s for ranks 1, 3 in collective 1, AllReduceSum of ", n, " f32")));
      }
    }
  }
}

// Only the deadline of rank 0 passes, and rank 2 has all the time until then to come.
TEST(GlooGroupTest, ARankAddsWhomItWaitsForToTheErrorOfAPeer) {
  Group group =
      CreateWith({0, 1, 2}, [](int process) { return GlooOptions{.timeout_seconds = process == 0 ? 1.0 : 600.0}; });
  std::vector<float> data(300);
  const std::vector<absl::Status> statuses = RunRanks(3, [&](int rank, Stream& stream) {
    if (rank == 1) return absl::OkStatus();
    return group[rank]->AllReduceSum(Tensor::Contiguous(DType::kFloat32, {100}, &data[100 * rank]), stream);
  });
  EXPECT_THAT(std::string(statuses[0].message()), HasSubstr("rank 0 waited 1 s for rank 1 in collective 1"));
  EXPECT_EQ(statuses[2].message(), absl::StrCat(statuses[0].message(), "; rank 2 waits for rank 1"));
}

TEST(GlooGroupTest, ARankThatItsOwnProcessMissesIsNamed) {
  Group group = Create({0, 0, 1}, {.timeout_seconds = 1});
  std::vector<float> data(300);
  const std::vector<absl::Status> statuses = RunRanks(3, [&](int rank, Stream& stream) {
    if (rank == 1) return absl::OkStatus();
    return group[rank]->AllReduceSum(Tensor::Contiguous(DType::kFloat32, {100}, &data[100 * rank]), stream);
  });
  for (const int rank : {0, 2}) {
    EXPECT_EQ(statuses[rank].code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(statuses[rank].message()), HasSubstr("rank 0 waited 1 s for rank 1 in collective 1"));
  }
}

// Ranks wait without a deadline, in the middle of large transfers and of small ones.
TEST(GlooGroupTest, AnAbortFromAnotherThreadEndsEveryWait) {
  for (const auto& [n, read_memory] : {std::pair(10, true), std::pair(3000000, true), std::pair(3000000, false)}) {
    Group group = Create({0, 0, 1, 2}, {.timeout_seconds = 0, .read_memory = read_memory});
    std::vector<std::vector<float>> data(4, std::vector<float>(n));
    std::thread aborter([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      group[3]->Abort(absl::ResourceExhaustedError("no memory"));
    });
    const std::vector<absl::Status> statuses = RunRanks(4, [&](int rank, Stream& stream) {
      absl::Status status;
      for (int i = 0; status.ok(); ++i) {
        if (rank == 2 && i == 3) break;  // Does not come any more.
        status = group[rank]->AllReduceSum(Tensor::Contiguous(DType::kFloat32, {n}, data[rank].data()), stream);
        if (status.ok()) status = stream.Synchronize();
      }
      return status;
    });
    aborter.join();
    for (const int rank : {0, 1, 3}) {
      EXPECT_EQ(statuses[rank], absl::AbortedError("rank 3 aborted: RESOURCE_EXHAUSTED: no memory")) << rank;
    }
  }
}

// Changes what a process says of its memory, as if it were in another container or on another host.
class ElsewhereStore : public FolderStore {
 public:
  using Change = std::function<std::string(std::string)>;
  ElsewhereStore(const std::string& folder, Change change) : FolderStore(folder), change_(std::move(change)) {}
  absl::Status Put(const std::string& key, const std::string& value) override {
    return FolderStore::Put(key, absl::StrContains(key, "/memory/1") ? change_(value) : value);
  }

 private:
  const Change change_;
};

TEST(GlooGroupTest, ProcessesThatCannotReadMemorySayWhyOnceAndUseTcp) {
  const auto other_token = [](std::string mine) {
    mine.back() = mine.back() == '1' ? '3' : '1';
    return mine;
  };
  const auto no_such_process = [](std::string mine) {
    return absl::StrCat(mine.substr(0, mine.find(' ')), " 2000000000", mine.substr(mine.find(' ', mine.find(' ') + 1)));
  };
  const auto no_such_file = [](std::string mine) {
    const size_t pid_end = mine.find(' ', mine.find(' ') + 1);
    return absl::StrCat(mine.substr(0, pid_end), " 999999", mine.substr(mine.find(' ', pid_end + 1)));
  };
  const auto other_host = [](std::string mine) { return "another" + mine; };
  const auto nothing = [](std::string) { return std::string(); };
  const struct {
    ElsewhereStore::Change change;
    std::string said;
  } cases[] = {{other_token, "does not hold the expected token"},
               {no_such_process, "process_vm_readv: No such process; run all processes in one container"},
               {no_such_file, "/fd/999999: No such file or directory"},
               {other_host, ""},
               {nothing, ""}};
  for (const auto& [change, said] : cases) {
    ElsewhereStore store(NewFolder(), change);
    Group group(2);
    std::string lines[2];
    ForEachRank(2, [&, &change = change](int rank) {
      GlooOptions options = {.timeout_seconds = 60};
      options.report = [&](const std::string& line) { lines[rank] += line; };
      auto made = CreateGlooGroup(store, {.name = "all", .process = rank, .process_of_rank = {0, 1}}, options);
      ASSERT_TRUE(made.ok()) << made.status();
      group[rank] = std::move((*made)[0]);
    });
    EXPECT_EQ(lines[0], lines[1]);
    EXPECT_EQ(lines[0].empty(), said.empty());
    EXPECT_THAT(lines[0], HasSubstr(said));
    CpuDevice device;
    ExpectSumsInRankOrder(group, device, 60013);
  }
}

TEST(GlooGroupTest, RefusesGroupsThatCannotBe) {
  FolderStore store(NewFolder());
  const GlooMembers two = {.name = "two", .process = 0, .process_of_rank = {0, 1}};
  const auto message = [&](const GlooMembers& members, const GlooOptions& options) {
    const absl::StatusOr<Group> group = CreateGlooGroup(store, members, options);
    EXPECT_FALSE(group.ok());
    return group.status().ToString();
  };
  EXPECT_THAT(message({.name = "none", .process = 3, .process_of_rank = {0, 1}}, {}),
              HasSubstr("process 3 holds no rank of group none"));
  EXPECT_THAT(message(two, {.address = "no-such-host.invalid"}), HasSubstr("address \"no-such-host.invalid\""));
  EXPECT_THAT(message(two, {.address = "192.0.2.1"}), HasSubstr("Gloo: "));
  EXPECT_THAT(message(two, {.timeout_seconds = -1}), HasSubstr("a time-out is"));
  EXPECT_THAT(message(two, {.connect_timeout_seconds = 0}), HasSubstr("connect_timeout_seconds must be above 0"));
  EXPECT_THAT(message(two, {.connect_timeout_seconds = 0.2}), HasSubstr("rank 0 cannot connect to rank 1"));
}

}  // namespace
}  // namespace shale
