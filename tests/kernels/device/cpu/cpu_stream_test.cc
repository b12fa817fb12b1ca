#include "kernels/device/cpu/cpu_stream.h"

#include <malloc.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device/cpu/cpu_device.h"
#include "tests/sanitizers.h"

namespace shale {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::Status Ok() { return absl::OkStatus(); }

// Blocks the work of a stream until the test opens the gate.
class Gate {
 public:
  void Open() { open_.Advance(); }
  std::function<absl::Status()> Pass() {
    return [this] {
      open_.AwaitAtLeast(1);
      return absl::OkStatus();
    };
  }

 private:
  Counter open_;
};

class CpuStreamTest : public ::testing::TestWithParam<bool> {
 protected:
  CpuStream& NewStream(absl::string_view name) {
    streams_.push_back(*device_.CreateStream(name));
    return static_cast<CpuStream&>(*streams_.back());
  }

  CpuDevice device_{CpuDeviceOptions{.synchronous = GetParam()}};
  std::vector<std::unique_ptr<Stream>> streams_;
};

INSTANTIATE_TEST_SUITE_P(Modes, CpuStreamTest, ::testing::Bool(), [](const ::testing::TestParamInfo<bool>& info) {
  return info.param ? "Synchronous" : "Threads";
});

TEST_P(CpuStreamTest, WorkRunsInTheOrderInWhichItWasEnqueued) {
  CpuStream& stream = NewStream("compute");
  std::vector<int> log;
  for (int i = 0; i < 5000; ++i) {
    ASSERT_TRUE(stream
                    .Enqueue([&log, i] {
                      log.push_back(i);
                      return absl::OkStatus();
                    })
                    .ok());
  }
  ASSERT_TRUE(stream.Synchronize().ok());
  ASSERT_EQ(log.size(), 5000);
  for (int i = 0; i < 5000; ++i) ASSERT_EQ(log[i], i);
}

TEST_P(CpuStreamTest, TheFirstErrorStaysAndSkipsWhatFollows) {
  CpuStream& stream = NewStream("compute");
  int ran = 0;
  (void)stream.Enqueue([&] { return ++ran, absl::NotFoundError("the first"); });
  (void)stream.Enqueue([&] { return ++ran, absl::DataLossError("the second"); });
  EXPECT_EQ(stream.Synchronize(), absl::NotFoundError("the first"));
  EXPECT_EQ(stream.Enqueue([&] { return ++ran, absl::OkStatus(); }), absl::NotFoundError("the first"));
  EXPECT_EQ(stream.Synchronize(), absl::NotFoundError("the first"));
  EXPECT_EQ(ran, 1);
}

TEST_P(CpuStreamTest, AnExceptionIsAnErrorThatNamesTheStream) {
  CpuStream& first = NewStream("compute");
  (void)first.Enqueue([]() -> absl::Status { throw std::runtime_error("out of primitives"); });
  EXPECT_EQ(first.Synchronize(), absl::InternalError("work on stream compute threw an exception: out of primitives"));
  CpuStream& second = NewStream("copy");
  (void)second.Enqueue([]() -> absl::Status { throw 3; });
  EXPECT_EQ(second.Synchronize(), absl::InternalError("work on stream copy threw an unknown exception"));
}

TEST_P(CpuStreamTest, AFailureReachesThoseThatWaitForItAndNobodyElse) {
  CpuStream &failing = NewStream("gather"), &dependent = NewStream("compute"), &other = NewStream("copy");
  std::unique_ptr<Event> before = *device_.CreateEvent(), after = *device_.CreateEvent();
  (void)failing.Enqueue(Ok);
  ASSERT_TRUE(failing.Record(*before).ok());
  (void)failing.Enqueue([] { return absl::UnavailableError("peer lost"); });
  ASSERT_TRUE(failing.Record(*after).ok());
  bool ran = false;
  ASSERT_TRUE(dependent.Wait(*after).ok());
  (void)dependent.Enqueue([&] { return ran = true, absl::OkStatus(); });
  ASSERT_TRUE(other.Wait(*before).ok());
  ASSERT_TRUE(other.Enqueue(Ok).ok());
  EXPECT_EQ(dependent.Synchronize(), absl::UnavailableError("peer lost"));
  EXPECT_FALSE(ran);
  EXPECT_TRUE(other.Synchronize().ok());
}

TEST_P(CpuStreamTest, WorkIsDestroyedBeforeItCountsAsFinished) {
  CpuStream& stream = NewStream("compute");
  auto held = std::make_shared<int>(1);
  std::weak_ptr<int> watched = held;
  ASSERT_TRUE(stream.Enqueue([held = std::move(held)] { return absl::OkStatus(); }).ok());
  ASSERT_TRUE(stream.Synchronize().ok());
  EXPECT_TRUE(watched.expired());
}

TEST_P(CpuStreamTest, DestructionRunsWhatWasEnqueued) {
  int ran = 0;
  CpuStream& stream = NewStream("compute");
  for (int i = 0; i < 100; ++i) (void)stream.Enqueue([&] { return ++ran, absl::OkStatus(); });
  streams_.clear();
  EXPECT_EQ(ran, 100);
}

TEST_P(CpuStreamTest, WaitingForTheOwnRecordIsFree) {
  CpuStream& stream = NewStream("compute");
  std::unique_ptr<Event> event = *device_.CreateEvent();
  ASSERT_TRUE(stream.Enqueue(Ok).ok());
  ASSERT_TRUE(stream.Record(*event).ok());
  ASSERT_TRUE(stream.Wait(*event).ok());
  EXPECT_TRUE(stream.Synchronize().ok());
}

TEST(CpuStreamThreadsTest, StreamsRunBesideOneAnother) {
  CpuDevice device;
  std::unique_ptr<Stream> a = *device.CreateStream("a"), b = *device.CreateStream("b");
  Gate gate;
  ASSERT_TRUE(static_cast<CpuStream&>(*a).Enqueue(gate.Pass()).ok());
  ASSERT_TRUE(static_cast<CpuStream&>(*b).Enqueue([&] { return gate.Open(), absl::OkStatus(); }).ok());
  EXPECT_TRUE(a->Synchronize().ok());
  EXPECT_TRUE(b->Synchronize().ok());
}

TEST(CpuStreamThreadsTest, AWaitHoldsUntilTheRecordIsReached) {
  CpuDevice device;
  std::unique_ptr<Stream> a = *device.CreateStream("a"), b = *device.CreateStream("b");
  std::unique_ptr<Event> event = *device.CreateEvent();
  Gate gate;
  std::vector<std::string> log;
  const auto note = [&log](const char* what) { return [&log, what] { return log.push_back(what), absl::OkStatus(); }; };
  ASSERT_TRUE(static_cast<CpuStream&>(*a).Enqueue(gate.Pass()).ok());
  ASSERT_TRUE(static_cast<CpuStream&>(*a).Enqueue(note("before")).ok());
  ASSERT_TRUE(a->Record(*event).ok());
  ASSERT_TRUE(b->Wait(*event).ok());
  ASSERT_TRUE(static_cast<CpuStream&>(*b).Enqueue(note("after")).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  gate.Open();
  ASSERT_TRUE(b->Synchronize().ok());
  EXPECT_THAT(log, ElementsAre("before", "after"));
}

TEST(CpuStreamThreadsTest, RecordsOfAFailedStreamAreReached) {
  CpuDevice device;
  std::unique_ptr<Stream> a = *device.CreateStream("a"), b = *device.CreateStream("b");
  std::unique_ptr<Event> event = *device.CreateEvent();
  Gate gate;
  ASSERT_TRUE(static_cast<CpuStream&>(*a).Enqueue(gate.Pass()).ok());
  ASSERT_TRUE(static_cast<CpuStream&>(*a).Enqueue([] { return absl::DataLossError("lost"); }).ok());
  ASSERT_TRUE(static_cast<CpuStream&>(*a).Enqueue(Ok).ok());
  ASSERT_TRUE(a->Record(*event).ok());
  ASSERT_TRUE(b->Wait(*event).ok());
  gate.Open();
  EXPECT_EQ(b->Synchronize(), absl::DataLossError("lost"));
}

// A failed stream must not run ahead of what it was told to wait for: streams that wait for it rely on that order.
TEST(CpuStreamThreadsTest, AFailedStreamStillWaits) {
  CpuDevice device;
  std::unique_ptr<Stream> slow = *device.CreateStream("slow"), failed = *device.CreateStream("failed");
  std::unique_ptr<Event> event = *device.CreateEvent();
  Gate gate;
  std::atomic<bool> passed = false;
  ASSERT_TRUE(static_cast<CpuStream&>(*slow).Enqueue(gate.Pass()).ok());
  ASSERT_TRUE(static_cast<CpuStream&>(*slow).Enqueue([&] { return passed = true, absl::OkStatus(); }).ok());
  ASSERT_TRUE(slow->Record(*event).ok());
  (void)static_cast<CpuStream&>(*failed).Enqueue([] { return absl::DataLossError("lost"); });
  ASSERT_TRUE(failed->Wait(*event).ok());
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    gate.Open();
  });
  EXPECT_EQ(failed->Synchronize(), absl::DataLossError("lost"));
  EXPECT_TRUE(passed);
  opener.join();
}

TEST(CpuStreamThreadsTest, AFullQueueBlocksTheLaunchingThread) {
  CpuDevice device({.queue_depth = 8});
  std::unique_ptr<Stream> owned = *device.CreateStream("compute");
  auto& stream = static_cast<CpuStream&>(*owned);
  Gate gate;
  std::atomic<int> enqueued = 0;
  ASSERT_TRUE(stream.Enqueue(gate.Pass()).ok());
  std::thread launching([&] {
    for (int i = 0; i < 100; ++i) {
      ASSERT_TRUE(stream.Enqueue(Ok).ok());
      ++enqueued;
    }
  });
  while (enqueued < 7) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(enqueued, 7);
  gate.Open();
  launching.join();
  EXPECT_TRUE(stream.Synchronize().ok());
  EXPECT_EQ(enqueued, 100);
}

TEST(CpuStreamThreadsTest, MemoryDoesNotGrowWithTheNumberOfItems) {
  if (HasSanitizer()) GTEST_SKIP() << "it keeps freed memory, and ThreadSanitizer keeps clocks of its own";
  const auto resident_bytes = [] {
    std::ifstream statm("/proc/self/statm");
    int64_t pages = 0;
    statm >> pages >> pages;
    return pages * sysconf(_SC_PAGESIZE);
  };
  CpuDevice device;
  std::unique_ptr<Stream> a = *device.CreateStream("a"), b = *device.CreateStream("b");
  std::unique_ptr<Event> event = *device.CreateEvent();
  const auto run = [&](int steps) {
    for (int i = 0; i < steps; ++i) {
      std::array<char, 200> captured = {};
      (void)static_cast<CpuStream&>(*a).Enqueue([captured] { return captured[0] == 0 ? Ok() : Ok(); });
      (void)a->Record(*event);
      (void)b->Wait(*event);
      (void)static_cast<CpuStream&>(*b).Enqueue([captured] { return captured[0] == 0 ? Ok() : Ok(); });
    }
    ASSERT_TRUE(a->Synchronize().ok());
    ASSERT_TRUE(b->Synchronize().ok());
  };
  run(5000);
  const int64_t before = resident_bytes();
  run(100000);
  EXPECT_LT(resident_bytes() - before, 1 << 20);
}

}  // namespace
}  // namespace shale
