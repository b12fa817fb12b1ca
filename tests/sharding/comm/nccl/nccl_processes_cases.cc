// Tests groups over NCCL between the processes that a launcher started, of which each is a rank:
//
//   tools/launch --processes=2 -- gpu_tests --gtest_filter='NcclProcesses*'
//
// All run the same cases in the same order, so that their groups meet. Processes share a GPU if there are too few. The
// cases are skipped without a launcher.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/cluster/launch/joined_processes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/check.h"
#include "kernels/device/cuda/cuda_device.h"
#include "kernels/element_range.h"
#include "sharding/comm/nccl/nccl.h"
#include "sharding/comm/nccl/nccl_environment.h"
#include "tests/sharding/comm/communicator_conformance.h"
#include "tests/sharding/comm/nccl/nccl_setup.h"

namespace shale::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr double kTimeout_s = 60;

// This process among those that the launcher started, from the first case to the end of the program.
struct Member {
  std::unique_ptr<JoinedProcesses> joined_processes;
  NcclSetup setup;
  std::unique_ptr<CudaDevice> device;
  int groups = 0;  // That were created so far.

  int rank() const { return joined_processes->place().process; }
  int size() const { return joined_processes->place().processes; }
};

absl::StatusOr<std::unique_ptr<Member>> Join() {
  auto member = std::make_unique<Member>();
  SHALE_ASSIGN_OR_RETURN(member->setup, CreateNcclSetup());
  CudaRuntime& runtime = *member->setup.runtime;
  SHALE_ASSIGN_OR_RETURN(const int gpus, runtime.DeviceCount());
  const Variables variables = EnvironmentVariables();
  SHALE_ASSIGN_OR_RETURN(const ProcessPlace place, FindProcessPlace(variables));
  SetNcclEnvironment();
  const bool shares = gpus < place.processes;
  if (shares) SetNcclSharingEnvironment(member->setup.nccl->Version());
  SHALE_ASSIGN_OR_RETURN(member->joined_processes,
                         JoinedProcesses::Join(variables, place.processes, {{"program", "nccl_processes_cases"}}));
  SHALE_ASSIGN_OR_RETURN(member->device, CudaDevice::Create(runtime, {.ordinal = shares ? 0 : place.process}));
  return member;
}

class NcclProcesses : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const absl::StatusOr<ProcessPlace> place = FindProcessPlace(EnvironmentVariables());
    if (!place.ok() || place->processes < 2) return;
    absl::StatusOr<std::unique_ptr<Member>> joined = Join();
    ASSERT_TRUE(joined.ok()) << joined.status();
    member_ = joined->release();
  }
  static void TearDownTestSuite() {
    if (member_ == nullptr) return;
    EXPECT_TRUE(member_->joined_processes->Leave().ok());
    delete member_;
    member_ = nullptr;
  }

  void SetUp() override {
    if (member_ == nullptr) GTEST_SKIP() << "start it with tools/launch --processes=2, or more";
    stream_ = *member_->device->CreateStream("collectives");
  }

  int rank() const { return member_->rank(); }
  int size() const { return member_->size(); }
  CudaDevice& device() { return *member_->device; }
  Stream& stream() { return *stream_; }
  void Meet() { ASSERT_TRUE(member_->joined_processes->control().Barrier(ControlChannel::kSteps).ok()); }

  // Creates this process's communicator in a group of `size` ranks, where it has this rank. All processes of the group
  // make the call; `part` distinguishes groups that are created at the same time.
  std::unique_ptr<Communicator> Create(int rank, int size, int part = 0, double timeout_s = kTimeout_s) {
    const NcclMembers members = {.name = absl::StrCat("group ", member_->groups++, ".", part),
                                 .size = size,
                                 .ranks = {rank},
                                 .ordinals = {device().ordinal()}};
    absl::StatusOr<Group> group =
        CreateNcclGroup(member_->setup.nccl, member_->setup.runtime, member_->joined_processes->store(), members,
                        {.timeout_seconds = timeout_s});
    if (!group.ok()) {
      ADD_FAILURE() << group.status();
      std::exit(1);  // The others would wait for this process.
    }
    return std::move(group->front());
  }
  std::unique_ptr<Communicator> Create() { return Create(rank(), size()); }

  // Returns the numbers of a rank, which every process can compute.
  static std::vector<float> Numbers(int rank, int64_t count) {
    std::mt19937 random(rank);
    std::normal_distribution<float> normal(0, 1e3);
    std::vector<float> numbers(count);
    for (float& x : numbers) x = normal(random);
    return numbers;
  }

  // Checks all collectives of `n` elements a rank, in place and not. NCCL adds in an order of its own, which leaves the
  // sum of two as it is. Of more, |error| <= (size - 1) x 2^-24 x sum |a|.
  void CheckCollectives(Communicator& communicator, int64_t n) {
    SCOPED_TRACE(absl::StrCat(n, " elements a rank"));
    const int rank = communicator.rank(), size = communicator.size();
    std::vector<std::vector<float>> all;
    for (int r = 0; r < size; ++r) all.push_back(Numbers(r, n * size));
    std::vector<float> joined(n * size);
    for (int64_t i = 0; i < n * size; ++i) joined[i] = all[i / n][i];
    const auto check_sum = [&](const std::vector<float>& found, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        double sum = 0, magnitude = 0;
        for (const std::vector<float>& of_rank : all) {
          sum += of_rank[i];
          magnitude += std::abs(of_rank[i]);
        }
        const double bound = size == 2 ? 0 : (size - 1) * 0x1p-24 * magnitude;
        const double wanted = size == 2 ? all[0][i] + all[1][i] : sum;
        ASSERT_LE(std::abs(found[i] - wanted), bound) << i;
      }
    };
    for (const bool in_place : {false, true}) {
      const DeviceVector<float> own(device(), all[rank], stream()), other(device(), n * size);
      const DeviceVector<float>& to = in_place ? own : other;
      ASSERT_TRUE(communicator.AllGather(own.View(rank * n, n), to.View(), stream()).ok());
      ASSERT_EQ(to.Read(stream()), joined);
    }
    for (const bool in_place : {false, true}) {
      const DeviceVector<float> own(device(), all[rank], stream()), other(device(), n * size);
      const DeviceVector<float>& to = in_place ? own : other;
      ASSERT_TRUE(communicator.ReduceScatterSum(own.View(), to.View(rank * n, n), stream()).ok());
      ASSERT_NO_FATAL_FAILURE(check_sum(to.Read(stream()), rank * n, (rank + 1) * n));
    }
    const DeviceVector<float> own(device(), all[rank], stream());
    ASSERT_TRUE(communicator.AllReduceSum(own.View(), stream()).ok());
    ASSERT_NO_FATAL_FAILURE(check_sum(own.Read(stream()), 0, n * size));
  }

  // Checks that a new group works, after the end of one that failed.
  void CheckNewGroup() {
    Meet();
    CheckCollectives(*Create(), 100);
  }

  static inline Member* member_ = nullptr;
  std::unique_ptr<Stream> stream_;
};

TEST_F(NcclProcesses, CollectivesOfAllSizesAreRight) {
  const std::unique_ptr<Communicator> communicator = Create();
  for (const int64_t n : {1, 7, 1000, 100'003, (4 << 20) / size()})
    ASSERT_NO_FATAL_FAILURE(CheckCollectives(*communicator, n));
}

TEST_F(NcclProcesses, BytesAndIntegersAreExact) {
  const std::unique_ptr<Communicator> communicator = Create();
  constexpr int64_t n = 5001;
  std::vector<int16_t> shorts(n * size()), joined(n * size());
  for (int64_t i = 0; i < n * size(); ++i) joined[i] = static_cast<int16_t>(i * 7919);
  std::copy_n(joined.begin() + rank() * n, n, shorts.begin() + rank() * n);
  const DeviceVector<int16_t> of_shorts(device(), shorts, stream());
  ASSERT_TRUE(communicator->AllGather(of_shorts.View(rank() * n, n), of_shorts.View(), stream()).ok());
  EXPECT_EQ(of_shorts.Read(stream()), joined);
  const DeviceVector<int64_t> count(device(), std::vector<int64_t>{(int64_t{1} << 40) + rank()}, stream());
  const DeviceVector<double> total(device(), std::vector<double>{0x1p30 + rank()}, stream());
  ASSERT_TRUE(communicator->AllReduceSum(count.View(), stream()).ok());
  ASSERT_TRUE(communicator->AllReduceSum(total.View(), stream()).ok());
  const int64_t ranks = size() * (size() - 1) / 2;
  EXPECT_EQ(count.Read(stream())[0], size() * (int64_t{1} << 40) + ranks);
  EXPECT_EQ(total.Read(stream())[0], size() * 0x1p30 + static_cast<double>(ranks));
}

// Each rank sends itself a piece too, and some pieces are empty. Longer ones go in many parts.
TEST_F(NcclProcesses, AllToAllBringsPiecesOfAnySize) {
  const std::unique_ptr<Communicator> communicator = Create();
  for (const int64_t times : {1, 37}) ASSERT_NO_FATAL_FAILURE(CheckAllToAll(*communicator, device(), stream(), times));
}

// Neither the ranks that send nothing nor those that receive nothing leave it out, or their numbers would differ.
TEST_F(NcclProcesses, AnAllToAllOfOnePieceIsACollectiveOfAllRanks) {
  constexpr int64_t n = 5000;
  const std::unique_ptr<Communicator> communicator = Create();
  for (int round = 0; round < 3; ++round) {
    const bool sends = rank() == 0, receives = rank() == size() - 1;
    const DeviceVector<float> from(device(), std::vector<float>(sends ? n : 0, 3), stream());
    const DeviceVector<float> to(device(), receives ? n : 0);
    std::vector<ElementRange> sent(size()), received(size());
    if (sends) sent.back() = {0, n};
    if (receives) received.front() = {0, n};
    ASSERT_TRUE(communicator->AllToAll({from.View(), sent}, {to.View(), received}, stream()).ok());
    EXPECT_THAT(to.Read(stream()), Each(3));
    ASSERT_NO_FATAL_FAILURE(CheckCollectives(*communicator, 100));
  }
}

// What a rank sends is overwritten as soon as its stream has passed, without waiting for the receivers.
TEST_F(NcclProcesses, AFinishedAllToAllNeedsItsInputsNoMore) {
  constexpr int kRounds = 20;
  constexpr int64_t n = 20'000;
  const std::unique_ptr<Communicator> communicator = Create();
  std::vector<int64_t> values(n * size() * kRounds);
  for (int64_t i = 0; i < std::ssize(values); ++i) values[i] = 100 * (i / n) + rank();  // By round and receiver.
  const DeviceVector<int64_t> rounds(device(), values, stream()), from(device(), n * size());
  const DeviceVector<int64_t> results(device(), std::ssize(values));
  std::vector<ElementRange> rows;
  for (int64_t r = 0; r < size(); ++r) rows.push_back({r * n, (r + 1) * n});
  for (int64_t round = 0; round < kRounds; ++round) {
    const int64_t at = round * n * size();
    ASSERT_TRUE(stream().Copy(from.data(), rounds.data() + at, n * size() * 8).ok());
    const Tensor result = results.View(at, n * size());
    ASSERT_TRUE(communicator->AllToAll({from.View(), rows}, {result, rows}, stream()).ok());
  }
  values = results.Read(stream());
  for (int64_t i = 0; i < std::ssize(values); ++i) {
    const int64_t row = i / n, sender = row % size();
    ASSERT_EQ(values[i], 100 * (row - sender + rank()) + sender) << i;
  }
}

// A step gathers on one stream while it reduces on another. One thread enqueues both, without waiting.
TEST_F(NcclProcesses, TwoGroupsOnTwoStreamsDoNotWaitForEachOther) {
  constexpr int kRounds = 30;
  constexpr int64_t n = 50'000;
  const std::unique_ptr<Communicator> gathers = Create(), reductions = Create();
  const std::unique_ptr<Stream> reduce = *device().CreateStream("reduce");
  const std::vector<float> ones(n * size(), 1.0f);
  const DeviceVector<float> gathered(device(), ones, stream()), reduced(device(), ones, *reduce);
  for (int round = 0; round < kRounds; ++round) {
    ASSERT_TRUE(gathers->AllGather(gathered.View(rank() * n, n), gathered.View(), stream()).ok());
    ASSERT_TRUE(reductions->AllReduceSum(reduced.View(0, 100), *reduce).ok());
    if (round % 3 == 0) {
      ASSERT_TRUE(reductions->ReduceScatterSum(reduced.View(), reduced.View(rank() * n, n), *reduce).ok());
    }
  }
  EXPECT_EQ(gathered.Read(stream()), ones);
  EXPECT_TRUE(reduce->Synchronize().ok());
}

// The groups of HSDP: rows of the mesh shard, columns replicate.
TEST_F(NcclProcesses, RowsAndColumnsOfAMeshAreGroups) {
  if (size() % 2 != 0 || size() < 4) GTEST_SKIP() << "a mesh needs four processes";
  const int columns = size() / 2, row = rank() / columns, column = rank() % columns;
  const std::unique_ptr<Communicator> along_row = Create(column, columns, row);
  const std::unique_ptr<Communicator> along_column = Create(row, 2, column);
  const DeviceVector<int64_t> of_row(device(), std::vector<int64_t>{int64_t{1} << rank()}, stream());
  const DeviceVector<int64_t> of_column(device(), std::vector<int64_t>{int64_t{1} << rank()}, stream());
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(along_row->AllReduceSum(of_row.View(), stream()).ok());
    ASSERT_TRUE(along_column->AllReduceSum(of_column.View(), stream()).ok());
  }
  const int64_t ranks_of_row = ((int64_t{1} << columns) - 1) << (row * columns);
  const int64_t ranks_of_column = (int64_t{1} << column) + (int64_t{1} << (column + columns));
  EXPECT_EQ(of_row.Read(stream())[0], ranks_of_row * columns * columns);
  EXPECT_EQ(of_column.Read(stream())[0], ranks_of_column * 4);
}

TEST_F(NcclProcesses, ADeadlineNamesWhoWaitedForWhat) {
  {
    const std::unique_ptr<Communicator> communicator = Create(rank(), size(), 0, /*timeout_s=*/3);
    const DeviceVector<float> data(device(), 1000);
    ASSERT_TRUE(communicator->AllReduceSum(data.View(), stream()).ok());
    ASSERT_TRUE(stream().Synchronize().ok());
    if (rank() == 0) {
      const auto begin = std::chrono::steady_clock::now();
      absl::Status status = communicator->AllReduceSum(data.View(0, 7), stream());
      if (status.ok()) status = stream().Synchronize();
      const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
      EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr(absl::StrCat("rank 0 of ", size(), " waited 3 s for collective 2, AllReduceSum of 7 f32")));
      EXPECT_LT(waited.count(), 8);
    }
    Meet();
    communicator->Abort(absl::CancelledError("rank 0 has failed"));  // As the processes of a job do.
    stream_.reset();
  }
  stream_ = *device().CreateStream("collectives");
  CheckNewGroup();
}

TEST_F(NcclProcesses, AnAbortEndsWhatWaits) {
  {
    const std::unique_ptr<Communicator> communicator = Create();
    const DeviceVector<float> data(device(), 1000);
    ASSERT_TRUE(communicator->AllReduceSum(data.View(), stream()).ok());
    ASSERT_TRUE(stream().Synchronize().ok());
    if (rank() == 0) {
      ASSERT_TRUE(communicator->AllReduceSum(data.View(), stream()).ok());
      std::thread aborts([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        communicator->Abort(absl::CancelledError("stop"));
      });
      const auto begin = std::chrono::steady_clock::now();
      const absl::Status status = stream().Synchronize();
      const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
      aborts.join();
      EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
      EXPECT_LT(waited.count(), 5);
    }
    Meet();
    communicator->Abort(absl::CancelledError("rank 0 has failed"));  // As the processes of a job do.
    stream_.reset();
  }
  stream_ = *device().CreateStream("collectives");
  CheckNewGroup();
}

}  // namespace
}  // namespace shale::testing
