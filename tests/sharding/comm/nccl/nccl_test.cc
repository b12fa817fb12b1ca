// Tests communicators over NCCL, with stand-ins for NCCL and for CUDA: the laws of all communicators, and what goes
// wrong.
#include "sharding/comm/nccl/nccl.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "kernels/check.h"
#include "tests/sharding/comm/folder_store.h"
#include "tests/sharding/comm/nccl/device_with_nccl.h"

namespace shale {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Group Create(int size, Device& device, bool check_agreement = false) {
  return static_cast<DeviceWithNccl&>(device).CreateGroup(size,
                                                          {.timeout_seconds = 0, .check_agreement = check_agreement});
}

// Returns an empty folder for a store.
std::string NewFolder() {
  static std::atomic<int> made = 0;
  const std::string folder = absl::StrCat(::testing::TempDir(), "/nccl_test_", getpid(), "_", ++made);
  std::filesystem::create_directories(folder);
  return folder;
}

// Creates the group in two "processes", threads of this one that have nothing in common but a store. They hold the
// ranks in turn.
Group CreateInTwoProcesses(int size, Device& device) {
  FolderStore store(NewFolder());
  Group group(size);
  ForEachRank(std::min(size, 2), [&](int process) {
    NcclMembers members{.name = "all", .size = size};
    for (int rank = process; rank < size; rank += 2) members.ranks.push_back(rank);
    members.ordinals.resize(members.ranks.size());
    auto& with_nccl = static_cast<DeviceWithNccl&>(device);
    absl::StatusOr<Group> made =
        CreateNcclGroup(Borrow<NcclApi>(with_nccl.nccl()), Borrow<CudaRuntime>(with_nccl.runtime()), store, members,
                        {.timeout_seconds = 0});
    ASSERT_TRUE(made.ok()) << made.status();
    for (size_t i = 0; i < members.ranks.size(); ++i) group[members.ranks[i]] = std::move((*made)[i]);
  });
  return group;
}

INSTANTIATE_TEST_SUITE_P(
    Nccl, CommunicatorConformance,
    ::testing::Values(CommunicatorCase{"Threads", [] { return std::make_unique<DeviceWithNccl>(); },
                                       [](int size, Device& device) { return Create(size, device); }},
                      CommunicatorCase{"CheckingAgreement", [] { return std::make_unique<DeviceWithNccl>(); },
                                       [](int size, Device& device) { return Create(size, device, true); }},
                      CommunicatorCase{"TwoProcesses", [] { return std::make_unique<DeviceWithNccl>(); },
                                       CreateInTwoProcesses, /*aborts_reach_all=*/false},
                      CommunicatorCase{
                          "Synchronous",
                          [] { return std::make_unique<DeviceWithNccl>(CudaDeviceOptions{.synchronous = true}); },
                          [](int size, Device& device) { return Create(size, device); }}),
    CaseName);

class NcclTest : public ::testing::Test {
 protected:
  using Enqueue = std::function<absl::Status(int rank, const DeviceVector<float>&, Stream&)>;

  // Runs `enqueue` on every rank with a vector of twelve elements and a stream. Returns the error of `enqueue`, or else
  // the status of the stream, by rank.
  std::vector<absl::Status> RunRanks(int ranks, const Enqueue& enqueue) {
    std::vector<absl::Status> statuses(ranks);
    ForEachRank(ranks, [&](int rank) {
      std::unique_ptr<Stream> stream = *device_.CreateStream("reduce");
      const DeviceVector<float> data(device_, 12);
      const absl::Status enqueued = enqueue(rank, data, *stream);
      const absl::Status ran = stream->Synchronize();
      statuses[rank] = enqueued.ok() ? ran : enqueued;
    });
    return statuses;
  }

  DeviceWithNccl device_;
  const std::shared_ptr<NcclApi> nccl_ = Borrow(device_.nccl());
  const std::shared_ptr<CudaRuntime> runtime_ = Borrow<CudaRuntime>(device_.runtime());
};

TEST_F(NcclTest, InPlaceIsWhatNcclTakesForInPlaceAndBytesAreBytes) {
  Group group = device_.CreateGroup(2);
  const auto statuses = RunRanks(2, [&](int rank, const DeviceVector<float>& data, Stream& stream) -> absl::Status {
    SHALE_RETURN_IF_ERROR(group[rank]->AllGather(data.View(6 * rank, 6), data.View(), stream));
    SHALE_RETURN_IF_ERROR(group[rank]->ReduceScatterSum(data.View(), data.View(6 * rank, 6), stream));
    return group[rank]->AllReduceSum(data.View(0, 5), stream);
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  std::vector<std::string> of_rank_1;
  for (const std::string& call : device_.nccl().calls()) {
    if (call.compare(0, 6, "rank 1") == 0) of_rank_1.push_back(call);
  }
  EXPECT_THAT(of_rank_1,
              ElementsAre("rank 1 AllGather 24 of type 0 in place", "rank 1 ReduceScatterSum 6 of type 7 in place",
                          "rank 1 AllReduceSum 5 of type 7 in place"));
}

TEST_F(NcclTest, NoElementsAreNoCall) {
  Group group = device_.CreateGroup(2);
  std::unique_ptr<Stream> stream = *device_.CreateStream("reduce");
  const DeviceVector<float> none(device_, 0);
  EXPECT_TRUE(group[0]->AllReduceSum(none.View(), *stream).ok());
  EXPECT_TRUE(group[0]->AllGather(none.View(), none.View(), *stream).ok());
  EXPECT_THAT(device_.nccl().calls(), IsEmpty());
}

TEST_F(NcclTest, RanksThatDisagreeAboutAPieceAreToldIfTheyCompareWhatTheyWant) {
  Group group = Create(3, device_, /*check_agreement=*/true);
  ExpectDifferentPiecesAreRefused(group, device_);
}

TEST_F(NcclTest, ARankThatDoesNotComeEndsTheGroupWhichNamesWhoWaitedForWhat) {
  Group group = device_.CreateGroup(2, {.timeout_seconds = 1});
  const auto statuses = RunRanks(2, [&](int rank, const DeviceVector<float>& data, Stream& stream) -> absl::Status {
    SHALE_RETURN_IF_ERROR(group[rank]->AllReduceSum(data.View(), stream));
    if (rank == 1) return stream.Synchronize();
    return group[rank]->AllReduceSum(data.View(0, 7), stream);
  });
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(
      std::string(statuses[0].message()),
      AllOf(HasSubstr("stream reduce: "), HasSubstr("rank 0 of 2 waited 1 s for collective 2, AllReduceSum of 7 f32")));
  for (const absl::Status& status : RunRanks(2, [&](int rank, const DeviceVector<float>&data, Stream&stream) {
         return group[rank]->AllReduceSum(data.View(), stream);
       })) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  }
  group.clear();
  EXPECT_EQ(device_.nccl().aborted(), 2);
}

TEST_F(NcclTest, ACollectiveBehindLongWorkIsNotLate) {
  Group group = device_.CreateGroup(2, {.timeout_seconds = 1.5});
  const auto statuses = RunRanks(2, [&](int rank, const DeviceVector<float>& data, Stream& stream) -> absl::Status {
    SHALE_ASSIGN_OR_RETURN(CudaStream * cuda, CudaStream::From(stream));
    SHALE_RETURN_IF_ERROR(cuda->Enqueue([&](cuda::StreamHandle handle) {
      const auto sleep = [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(2500)); };
      return device_.runtime().LaunchHostFunction(sleep, nullptr, handle);
    }));
    return group[rank]->AllReduceSum(data.View(), stream);
  });
  // The sleep does not count: the first rank to reach the collective waits for the other only.
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

TEST_F(NcclTest, AGroupOfWhichOneCannotConnectIsNotMade) {
  device_.nccl().FailInit(1);
  const absl::Status status = CreateNcclGroup(nccl_, runtime_, {0, 0, 0}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("rank 1 of 3: NCCL failed in ncclCommInitRankConfig: stand-in error 2: as ordered"));
}

TEST_F(NcclTest, ARankWhosePeersDoNotConnectGivesUp) {
  FolderStore store(NewFolder());
  const NcclMembers first = {.name = "two", .size = 2, .ranks = {0}, .ordinals = {0}};
  const absl::Status status = CreateNcclGroup(nccl_, runtime_, store, first, {.timeout_seconds = 0.05}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0 of 2 waited 0.05 s for NCCL to connect the ranks"));
}

TEST_F(NcclTest, ACollectiveThatNcclRefusesEndsTheGroupWithItsName) {
  device_.nccl().FailCollective(/*rank=*/1, /*nth=*/3);
  Group group = device_.CreateGroup(3);
  for (const absl::Status& status :
       RunRanks(3, [&](int rank, const DeviceVector<float>&data, Stream&stream) -> absl::Status {
         for (int i = 0; i < 4; ++i) SHALE_RETURN_IF_ERROR(group[rank]->AllReduceSum(data.View(), stream));
         return absl::OkStatus();
       })) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("rank 1 of 3: NCCL failed in collective 3, AllReduceSum of 12 f32: stand-in error 3"));
  }
}

// This happens when a link fails while a collective runs.
TEST_F(NcclTest, AnErrorThatNcclNotesLaterEndsTheGroup) {
  Group group = device_.CreateGroup(2);
  const auto statuses = RunRanks(2, [&](int rank, const DeviceVector<float>& data, Stream& stream) {
    if (rank == 1) return absl::OkStatus();
    const absl::Status status = group[0]->AllReduceSum(data.View(), stream);
    device_.nccl().NoteError(0);
    return status;
  });
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(statuses[0].message()),
              HasSubstr("rank 0 of 2: NCCL failed in collective 1, AllReduceSum of 12 f32"));
}

TEST_F(NcclTest, ALateErrorIsOfEveryStreamThatTheGroupWasGiven) {
  Group group = device_.CreateGroup(1);
  std::unique_ptr<Stream> first = *device_.CreateStream("first"), second = *device_.CreateStream("second"),
                          other = *device_.CreateStream("other");
  const DeviceVector<float> data(device_, 12);
  for (Stream* stream : {first.get(), second.get()}) {
    ASSERT_TRUE(group[0]->AllReduceSum(data.View(), *stream).ok());
    ASSERT_TRUE(stream->Synchronize().ok());
  }
  group[0]->Abort(absl::CancelledError("stop"));
  for (Stream* stream : {first.get(), second.get()}) {
    EXPECT_EQ(stream->Copy(data.data(), data.data() + 6, 4).code(), absl::StatusCode::kAborted);
    EXPECT_EQ(stream->Synchronize().code(), absl::StatusCode::kAborted);
  }
  EXPECT_TRUE(other->Synchronize().ok());
}

TEST_F(NcclTest, WithAgreementCheckedRanksThatWantDifferentThingsAreToldWhoWantedWhat) {
  Group group = device_.CreateGroup(3, {.timeout_seconds = 0, .check_agreement = true});
  for (const absl::Status& status : RunRanks(3, [&](int rank, const DeviceVector<float>&data, Stream&stream) {
         return group[rank]->AllReduceSum(data.View(0, rank == 1 ? 11 : 12), stream);
       })) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("ranks 0, 2 want AllReduceSum of 12 f32; rank 1 wants AllReduceSum of 11 f32"));
  }
  EXPECT_THAT(device_.nccl().calls(), IsEmpty());
}

TEST_F(NcclTest, MemoryOfNcclBecomesAWindowUntilItsEnd) {
  device_.nccl().set_runtime(&device_.runtime());
  constexpr int kRanks = 3;
  Group group = device_.CreateGroup(kRanks, {.timeout_seconds = 0, .windows = true});
  absl::StatusOr<std::unique_ptr<CudaDevice>> with_windows =
      CudaDevice::Create(device_.runtime(), {.memory = CreateNcclMemory(nccl_)});
  ASSERT_TRUE(with_windows.ok()) << with_windows.status();
  std::vector<std::unique_ptr<Arena>> arenas;
  for (int rank = 0; rank < kRanks; ++rank) arenas.push_back(*(*with_windows)->Allocate(5000));
  ForEachRank(kRanks, [&](int rank) {
    EXPECT_TRUE(group[rank]->RegisterMemory(arenas[rank]->base(), 5000).ok());
    EXPECT_TRUE(group[rank]->DeregisterMemory().ok());
    EXPECT_TRUE(group[rank]->DeregisterMemory().ok());
    EXPECT_TRUE(group[rank]->RegisterMemory(arenas[rank]->base(), 5000).ok());
  });
  // The stand-in reports memory that is freed while it is a window.
  ForEachRank(kRanks, [&](int rank) { EXPECT_TRUE(group[rank]->DeregisterMemory().ok()); });
}

TEST_F(NcclTest, WindowsOfAnOldNcclAreRefusedBeforeTheGroup) {
  device_.nccl().TakeWindowsAway();
  const std::vector<int> ordinals = {0, 0};
  const absl::Status status =
      CreateNcclGroup(nccl_, runtime_, ordinals, {.timeout_seconds = 0, .windows = true}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("install NCCL 2.27 or newer, or remove runtime.nccl_windows"));
}

TEST_F(NcclTest, AWindowThatNcclRefusesEndsTheGroup) {
  device_.nccl().set_runtime(&device_.runtime());
  Group group = device_.CreateGroup(2, {.timeout_seconds = 0, .windows = true});
  const absl::StatusOr<std::unique_ptr<CudaDevice>> device =
      CudaDevice::Create(device_.runtime(), {.memory = CreateNcclMemory(nccl_)});
  ASSERT_TRUE(device.ok()) << device.status();
  const std::unique_ptr<Arena> arena = *(*device)->Allocate(5000);
  ASSERT_TRUE(group[0]->RegisterMemory(arena->base(), 5000).ok());
  EXPECT_EQ(group[0]->RegisterMemory(arena->base(), 5000).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(group[0]->DeregisterMemory().ok());  // The abort has ended the window.
  const std::vector<absl::Status> statuses = RunRanks(
      2, [&](int rank, const auto& data, Stream& stream) { return group[rank]->AllReduceSum(data.View(), stream); });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(std::string(status.message()), HasSubstr("this communicator already has a window"));
  }
}

// A rank may end while the others still run a collective that it has finished.
TEST_F(NcclTest, ALeavingRankDisturbsNothingThatAllHaveBegun) {
  for (int round = 0; round < 20; ++round) {
    Group group = device_.CreateGroup(3);
    for (const absl::Status& status : RunRanks(3, [&](int rank, const DeviceVector<float>&data, Stream&stream) {
           absl::Status status = group[rank]->AllReduceSum(data.View(), stream);
           status.Update(stream.Synchronize());
           group[rank].reset();
           return status;
         })) {
      EXPECT_TRUE(status.ok()) << status;
    }
  }
  EXPECT_EQ(device_.nccl().aborted(), 0);
}

TEST_F(NcclTest, ARankThatLeavesAmidItsCollectivesAbortsThem) {
  Group group = device_.CreateGroup(2);
  std::unique_ptr<Stream> stream = *device_.CreateStream("reduce");
  const DeviceVector<float> data(device_, 12);
  ASSERT_TRUE(group[0]->AllReduceSum(data.View(), *stream).ok());
  group[0].reset();
  const absl::Status status = stream->Synchronize();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0 left before its collectives had finished"));
}

TEST(NcclDevicesTest, AGpuThatFailsEndsTheCollectivesOfTheOthers) {
  StandInNccl nccl;
  cuda_on_host::StandInRuntime runtime({.devices = 2});
  {
    std::vector<std::unique_ptr<CudaDevice>> devices;
    for (int ordinal : {0, 1}) devices.push_back(*CudaDevice::Create(runtime, {.ordinal = ordinal}));
    Group group = *CreateNcclGroup(Borrow(nccl), Borrow<CudaRuntime>(runtime), {0, 1}, {.timeout_seconds = 0});
    runtime.FailKernel(1);
    std::vector<absl::Status> statuses(2);
    ForEachRank(2, [&](int rank) {
      std::unique_ptr<Stream> stream = *devices[rank]->CreateStream("reduce");
      const DeviceVector<float> data(*devices[rank], 12);
      const absl::Status enqueued = group[rank]->AllReduceSum(data.View(), *stream);
      const absl::Status ran = stream->Synchronize();
      statuses[rank] = enqueued.ok() ? ran : enqueued;
    });
    for (const absl::Status& status : statuses) {
      EXPECT_THAT(std::string(status.message()), HasSubstr("an illegal memory access was encountered"));
    }
  }
  EXPECT_THAT(nccl.misuse(), IsEmpty());
  EXPECT_EQ(nccl.live(), 0);
}

TEST_F(NcclTest, RefusesGroupsThatCannotBe) {
  const auto code = [](const auto& made) { return made.status().code(); };
  constexpr auto kRefused = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code(CreateNcclGroup(nccl_, runtime_, {})), kRefused);
  for (double seconds : {-1.0, std::nan(""), static_cast<double>(INFINITY)}) {
    EXPECT_EQ(code(CreateNcclGroup(nccl_, runtime_, {0}, {.timeout_seconds = seconds})), kRefused);
  }
  FolderStore store(NewFolder());
  const auto with = [&](const NcclMembers& members, const NcclOptions& options = {.timeout_seconds = 0.05}) {
    return code(CreateNcclGroup(nccl_, runtime_, store, members, options));
  };
  EXPECT_EQ(with({.name = "a", .size = 2, .ranks = {2}, .ordinals = {0}}), kRefused);
  EXPECT_EQ(with({.name = "a", .size = 2, .ranks = {1, 0}, .ordinals = {0, 0}}), kRefused);
  EXPECT_EQ(with({.name = "a", .size = 2, .ranks = {0, 1}, .ordinals = {0}}), kRefused);
  EXPECT_EQ(with({.name = "a", .size = 2}), kRefused);
  EXPECT_EQ(with({.name = "a", .size = 1, .ranks = {0}, .ordinals = {0}}, {.check_agreement = true}), kRefused);
  EXPECT_EQ(with({.name = "nobody's", .size = 2, .ranks = {1}, .ordinals = {0}}), absl::StatusCode::kDeadlineExceeded);
  ASSERT_TRUE(store.Put("nccl/short", "id").ok());
  EXPECT_EQ(with({.name = "short", .size = 2, .ranks = {1}, .ordinals = {0}}), kRefused);
}

}  // namespace
}  // namespace shale
