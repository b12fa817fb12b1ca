#include "tests/kernels/device/device_conformance.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <new>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/device/ordinary_values.h"

namespace shale {
namespace {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceConformance);

TEST_P(DeviceConformance, AnArenaIsZeroedAlignedAndAsLargeAsAsked) {
  for (int64_t size : {0, 1, 4096, 4097, 3 << 20, (4 << 20) + 12345}) {
    std::unique_ptr<Arena> arena = MakeArena(size);
    ASSERT_EQ(arena->size_bytes(), size);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(arena->base()) % 4096, 0);
    std::vector<std::byte> bytes(size, std::byte{1});
    std::unique_ptr<Stream> stream = MakeStream("copy");
    ASSERT_TRUE(stream->Copy(bytes.data(), arena->base(), size).ok());
    ASSERT_TRUE(stream->Synchronize().ok());
    EXPECT_EQ(std::count(bytes.begin(), bytes.end(), std::byte{0}), size);
  }
}

TEST_P(DeviceConformance, AnArenaThatCannotBeIsRefusedWithItsSize) {
  absl::StatusOr<std::unique_ptr<Arena>> huge = device_->Allocate(int64_t{1} << 60);
  ASSERT_EQ(huge.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(huge.status().message().find("1152921504606846976 bytes"), absl::string_view::npos) << huge.status();
  EXPECT_EQ(device_->Allocate(-1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(device_->Allocate(4096).ok());
}

TEST_P(DeviceConformance, AStreamRunsInOrder) {
  std::unique_ptr<Arena> arena = MakeArena(8 * 1001);
  std::unique_ptr<Stream> stream = MakeStream("copy");
  const int64_t value = 0x5ca1ab1e;
  // Each copy passes on what the one before wrote.
  ASSERT_TRUE(stream->Copy(arena->base(), &value, 8).ok());
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(stream->Copy(arena->base() + 8 * (i + 1), arena->base() + 8 * i, 8).ok());
  }
  int64_t last = 0;
  ASSERT_TRUE(stream->Copy(&last, arena->base() + 8 * 1000, 8).ok());
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_EQ(last, value);
}

TEST_P(DeviceConformance, AnEventThatWasNeverRecordedIsReached) {
  std::unique_ptr<Stream> stream = MakeStream("compute");
  std::unique_ptr<Event> event = MakeEvent();
  ASSERT_TRUE(stream->Wait(*event).ok());
  EXPECT_TRUE(stream->Synchronize().ok());
}

TEST_P(DeviceConformance, AWaitRefersToTheLatestRecordBeforeIt) {
  constexpr int64_t kBytes = 1 << 20;
  std::unique_ptr<Arena> arena = MakeArena(3 * kBytes);
  std::byte *first = arena->base(), *second = first + kBytes, *result = second + kBytes;
  std::unique_ptr<Stream> writer = MakeStream("writer"), reader = MakeStream("reader");
  std::unique_ptr<Event> event = MakeEvent();
  const std::vector<std::byte> ones(kBytes, std::byte{1}), twos(kBytes, std::byte{2});
  ASSERT_TRUE(writer->Copy(first, ones.data(), kBytes).ok());
  ASSERT_TRUE(writer->Record(*event).ok());
  ASSERT_TRUE(reader->Wait(*event).ok());
  ASSERT_TRUE(reader->Copy(result, first, kBytes).ok());
  ASSERT_TRUE(writer->Copy(second, twos.data(), kBytes).ok());
  ASSERT_TRUE(writer->Record(*event).ok());
  ASSERT_TRUE(reader->Wait(*event).ok());
  ASSERT_TRUE(reader->Copy(result, second, kBytes / 2).ok());
  std::vector<std::byte> seen(kBytes);
  ASSERT_TRUE(reader->Copy(seen.data(), result, kBytes).ok());
  ASSERT_TRUE(reader->Synchronize().ok());
  EXPECT_EQ(std::count(seen.begin(), seen.begin() + kBytes / 2, std::byte{2}), kBytes / 2);
  EXPECT_EQ(std::count(seen.begin() + kBytes / 2, seen.end(), std::byte{1}), kBytes / 2);
}

TEST_P(DeviceConformance, StreamsMayEndBeforeThoseThatWaitForThem) {
  std::unique_ptr<Arena> arena = MakeArena(1 << 20);
  std::unique_ptr<Stream> first = MakeStream("first"), second = MakeStream("second");
  {
    std::unique_ptr<Event> event = MakeEvent();
    const std::vector<std::byte> ones(1 << 20, std::byte{1});
    ASSERT_TRUE(first->Copy(arena->base(), ones.data(), 1 << 20).ok());
    ASSERT_TRUE(first->Record(*event).ok());
    ASSERT_TRUE(second->Wait(*event).ok());
    first.reset();
  }
  std::byte last{0};
  ASSERT_TRUE(second->Copy(&last, arena->base() + (1 << 20) - 1, 1).ok());
  ASSERT_TRUE(second->Synchronize().ok());
  EXPECT_EQ(last, std::byte{1});
}

TEST_P(DeviceConformance, TimesAreThoseOfTheHostsSteadyClockInTheOrderOfTheWork) {
  const auto now = [] { return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count(); };
  // A device that only knows how far apart two of its own moments are may err by this many nanoseconds.
  constexpr int64_t kError = 2'000'000;
  std::unique_ptr<Arena> arena = MakeArena(2 << 20);
  std::unique_ptr<Stream> first = MakeStream("first"), second = MakeStream("second");
  std::unique_ptr<Event> event = MakeEvent();
  for (int round = 0; round < 3; ++round) {
    std::array<int64_t, 4> times = {};
    const int64_t before = now();
    ASSERT_TRUE(first->RecordTime(&times[0]).ok());
    ASSERT_TRUE(first->Copy(arena->base(), arena->base() + (1 << 20), 1 << 20).ok());
    ASSERT_TRUE(first->RecordTime(&times[1]).ok());
    ASSERT_TRUE(first->Record(*event).ok());
    ASSERT_TRUE(second->Wait(*event).ok());
    ASSERT_TRUE(second->RecordTime(&times[2]).ok());
    ASSERT_TRUE(second->RecordTime(&times[3]).ok());
    ASSERT_TRUE(second->Synchronize().ok());
    ASSERT_TRUE(first->Synchronize().ok());
    EXPECT_LT(before - kError, times[0]);
    EXPECT_LE(times[0], times[1]);
    EXPECT_LE(times[2], times[3]);
    EXPECT_LT(times[1] - kError, times[2]);
    EXPECT_LT(times[3], now() + kError);
  }
}

TEST_P(DeviceConformance, ANegativeSizeIsRefused) {
  std::unique_ptr<Arena> arena = MakeArena(64);
  std::unique_ptr<Stream> stream = MakeStream("copy");
  EXPECT_EQ(stream->Copy(arena->base(), arena->base() + 32, -1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(stream->Synchronize().ok());
}

TEST_P(DeviceConformance, ACopyThatIsWaitedForComesAfterWhatTheStreamHasAndIsDone) {
  constexpr int64_t kBytes = 1 << 20;
  std::unique_ptr<Arena> arena = MakeArena(2 * kBytes);
  std::unique_ptr<Stream> stream = MakeStream("copy"), other = MakeStream("other");
  std::unique_ptr<Event> event = MakeEvent();
  std::vector<std::byte> bytes(kBytes, std::byte{3}), seen(kBytes);
  ASSERT_TRUE(stream->Copy(arena->base(), bytes.data(), kBytes).ok());
  ASSERT_TRUE(stream->Copy(arena->base() + kBytes, arena->base(), kBytes).ok());
  ASSERT_TRUE(stream->CopyAndWait(seen.data(), arena->base() + kBytes, kBytes).ok());
  EXPECT_EQ(seen, bytes);
  // Later work sees the copy, on this stream and, through an event, on others.
  seen[kBytes - 1] = std::byte{4};
  ASSERT_TRUE(stream->CopyAndWait(arena->base(), seen.data(), kBytes).ok());
  seen[kBytes - 1] = std::byte{5};
  ASSERT_TRUE(stream->Record(*event).ok());
  ASSERT_TRUE(other->Wait(*event).ok());
  ASSERT_TRUE(other->Copy(arena->base() + kBytes, arena->base(), kBytes).ok());
  ASSERT_TRUE(other->CopyAndWait(seen.data(), arena->base() + kBytes, kBytes).ok());
  EXPECT_EQ(seen[kBytes - 1], std::byte{4});
  EXPECT_EQ(stream->CopyAndWait(seen.data(), arena->base(), -1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(stream->Synchronize().ok());
}

TEST_P(DeviceConformance, OrdinaryValuesFillWhatIsNamedAndNoMore) {
  constexpr int64_t kBytes = (int64_t{2} << 20) + 7, kBefore = 8;
  std::unique_ptr<Arena> arena = *device_->Allocate(kBefore + kBytes + 8);
  std::unique_ptr<Stream> stream = *device_->CreateStream("compute");
  ASSERT_TRUE(FillWithOrdinaryValues(*device_, *stream, arena->base() + kBefore, kBytes).ok());
  ASSERT_TRUE(FillWithOrdinaryValues(*device_, *stream, arena->base(), 1).ok());  // Too few bytes for a value.
  std::unique_ptr<Arena> seen = *device_->AllocatePinned(arena->size_bytes());
  ASSERT_TRUE(stream->CopyAndWait(seen->base(), arena->base(), arena->size_bytes()).ok());
  constexpr int64_t kValues = kBytes / 2;
  int64_t negative = 0;
  for (int64_t i = 0; i < kValues; ++i) {
    uint16_t bits;
    std::memcpy(&bits, seen->base() + kBefore + 2 * i, sizeof(bits));
    const float value = std::bit_cast<float>(uint32_t{bits} << 16);
    negative += value < 0;
    ASSERT_TRUE(std::abs(value) >= 0x1p-8f && std::abs(value) < 1) << i << ": " << value;
  }
  EXPECT_GT(negative, kValues / 3);
  EXPECT_LT(negative, kValues * 2 / 3);
  for (int64_t i = 0; i < arena->size_bytes(); ++i) {
    if (i < kBefore || i >= kBefore + 2 * kValues) {
      ASSERT_EQ(seen->base()[i], std::byte{0}) << i;
    }
  }
}

// A graph of two streams passes bytes on. The host memory of its first and last copy is set anew for each launch.
TEST_P(DeviceConformance, AGraphDoesAtEachLaunchWhatItsStreamsWereGiven) {
  if (!device_->CanCapture()) {
    std::unique_ptr<Stream> stream = MakeStream("compute");
    EXPECT_FALSE(stream->BeginCapture().ok());
    EXPECT_TRUE(stream->Synchronize().ok());
    GTEST_SKIP() << "the device captures nothing";
  }
  constexpr int64_t kBytes = 1 << 16, kLaunches = 20;
  std::unique_ptr<Arena> arena = MakeArena(3 * kBytes);
  absl::StatusOr<std::unique_ptr<Arena>> host = device_->AllocatePinned(2 * kLaunches * kBytes);
  ASSERT_TRUE(host.ok()) << host.status();
  std::byte *in = (*host)->base(), *out = in + kLaunches * kBytes;
  for (int64_t i = 0; i < kLaunches; ++i) std::memset(in + i * kBytes, static_cast<int>(i + 1), kBytes);
  std::unique_ptr<Stream> compute = MakeStream("compute"), copy = MakeStream("copy");
  std::unique_ptr<Event> begun = MakeEvent(), loaded = MakeEvent();
  // Work that the stream gets before and after a graph keeps its order.
  ASSERT_TRUE(compute->Copy(arena->base() + kBytes, in + kBytes, kBytes).ok());
  ASSERT_TRUE(compute->BeginCapture().ok());
  ASSERT_TRUE(compute->Record(*begun).ok());
  ASSERT_TRUE(copy->Wait(*begun).ok());
  absl::StatusOr<CapturedCopy> from = copy->CaptureCopy(arena->base(), in, kBytes);
  ASSERT_TRUE(from.ok()) << from.status();
  ASSERT_TRUE(copy->Record(*loaded).ok());
  ASSERT_TRUE(compute->Wait(*loaded).ok());
  ASSERT_TRUE(compute->Copy(arena->base() + 2 * kBytes, arena->base() + kBytes, kBytes).ok());
  ASSERT_TRUE(compute->Copy(arena->base() + kBytes, arena->base(), kBytes).ok());
  absl::StatusOr<CapturedCopy> to = compute->CaptureCopy(out, arena->base() + 2 * kBytes, kBytes);
  ASSERT_TRUE(to.ok()) << to.status();
  absl::StatusOr<std::unique_ptr<Graph>> graph = compute->EndCapture();
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (int64_t i = 0; i < kLaunches; ++i) {
    ASSERT_TRUE((*graph)->SetCopy(*from, arena->base(), in + i * kBytes).ok());
    ASSERT_TRUE((*graph)->SetCopy(*to, out + i * kBytes, arena->base() + 2 * kBytes).ok());
    ASSERT_TRUE((*graph)->Launch(*compute).ok());
  }
  graph->reset();
  ASSERT_TRUE(compute->Copy(in, arena->base() + kBytes, kBytes).ok());
  ASSERT_TRUE(compute->Synchronize().ok());
  ASSERT_TRUE(copy->Synchronize().ok());
  for (int64_t i = 0; i < kLaunches; ++i) {
    const std::byte expected = static_cast<std::byte>(i == 0 ? 2 : i);
    ASSERT_EQ(std::count(out + i * kBytes, out + (i + 1) * kBytes, expected), kBytes) << i;
  }
  EXPECT_EQ(std::count(in, in + kBytes, static_cast<std::byte>(kLaunches)), kBytes);
}

// Host work counts up what one stream copies to the host, and another stream copies the result back.
TEST_P(DeviceConformance, WorkOnTheHostRunsBetweenEarlierAndLaterWork) {
  constexpr int64_t kCount = 1 << 16, kBytes = kCount * sizeof(int32_t);
  std::unique_ptr<Arena> arena = MakeArena(kBytes);
  absl::StatusOr<std::unique_ptr<Arena>> host = device_->AllocatePinned(kBytes);
  ASSERT_TRUE(host.ok()) << host.status();
  auto* const numbers = reinterpret_cast<int32_t*>((*host)->base());
  std::unique_ptr<Stream> copy = MakeStream("copy"), work = MakeStream("host");
  std::unique_ptr<Event> down = MakeEvent(), counted = MakeEvent();
  const auto count = [numbers] {
    for (int64_t i = 0; i < kCount; ++i) ++numbers[i];
    return absl::OkStatus();
  };
  const auto round = [&] {
    ASSERT_TRUE(copy->Copy(numbers, arena->base(), kBytes).ok());
    ASSERT_TRUE(copy->Record(*down).ok());
    ASSERT_TRUE(work->Wait(*down).ok());
    ASSERT_TRUE(work->RunOnHost(count).ok());
    ASSERT_TRUE(work->RunOnHost(count).ok());
    ASSERT_TRUE(work->Record(*counted).ok());
    ASSERT_TRUE(copy->Wait(*counted).ok());
    ASSERT_TRUE(copy->Copy(arena->base(), numbers, kBytes).ok());
  };
  for (int i = 0; i < 5; ++i) round();
  ASSERT_TRUE(copy->Synchronize().ok());
  ASSERT_TRUE(work->Synchronize().ok());
  EXPECT_EQ(std::count(numbers, numbers + kCount, 10), kCount);
  if (!device_->CanCapture()) return;
  std::unique_ptr<Stream> origin = MakeStream("compute");
  std::unique_ptr<Event> begun = MakeEvent(), done = MakeEvent();
  ASSERT_TRUE(origin->BeginCapture().ok());
  ASSERT_TRUE(origin->Record(*begun).ok());
  ASSERT_TRUE(copy->Wait(*begun).ok());
  round();
  ASSERT_TRUE(copy->Record(*done).ok());
  ASSERT_TRUE(origin->Wait(*done).ok());
  absl::StatusOr<std::unique_ptr<Graph>> graph = origin->EndCapture();
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE((*graph)->Launch(*origin).ok());
  ASSERT_TRUE(origin->Synchronize().ok());
  // Captured work is kept, although the stream has been waited for.
  ASSERT_TRUE(work->Synchronize().ok());
  ASSERT_TRUE((*graph)->Launch(*origin).ok());
  ASSERT_TRUE(origin->Synchronize().ok());
  EXPECT_EQ(std::count(numbers, numbers + kCount, 18), kCount);
}

TEST_P(DeviceConformance, AnErrorOfWorkOnTheHostIsAnErrorOfItsStream) {
  const auto fails = []() -> absl::Status { return absl::DataLossError("the host lost it"); };
  const auto throws = []() -> absl::Status { throw std::bad_alloc(); };
  for (const auto& [work, code] :
       {std::pair<std::function<absl::Status()>, absl::StatusCode>{fails, absl::StatusCode::kDataLoss},
        {throws, absl::StatusCode::kInternal}}) {
    std::unique_ptr<Stream> stream = MakeStream("host"), other = MakeStream("other");
    std::atomic<bool> ran = false;
    // A synchronous stream returns the error at once.
    stream->RunOnHost(work).IgnoreError();
    stream
        ->RunOnHost([&ran] {
          ran = true;
          return absl::OkStatus();
        })
        .IgnoreError();
    EXPECT_EQ(stream->Synchronize().code(), code);
    EXPECT_EQ(stream->Synchronize().code(), code);
    EXPECT_FALSE(ran);
    EXPECT_FALSE(stream->RunOnHost(fails).ok());
    EXPECT_TRUE(other->Synchronize().ok());
  }
}

TEST_P(DeviceConformance, CopiesAreMeteredOnBothSides) {
  std::unique_ptr<Arena> arena = MakeArena(4096);
  MemoryMeter meter(arena->base(), 4096);
  std::unique_ptr<Stream> stream = MakeStream("copy");
  stream->set_meter(&meter);
  std::byte host[64] = {};
  ASSERT_TRUE(stream->Copy(arena->base() + 100, host, 64).ok());
  EXPECT_EQ(meter.peak_bytes(), 164);
  ASSERT_TRUE(stream->Copy(host, arena->base() + 1000, 24).ok());
  EXPECT_EQ(meter.peak_bytes(), 1024);
  ASSERT_TRUE(stream->CopyAndWait(host, arena->base() + 2000, 24).ok());
  EXPECT_EQ(meter.peak_bytes(), 2024);
  ASSERT_TRUE(stream->Synchronize().ok());
}

// Random copies between the slots of an arena, on four streams, with exactly the waits that reads and writes ask for
// (an event per copy, some recorded again), must leave the same bytes as the same copies one after the other.
TEST_P(DeviceConformance, RandomProgramsOnFourStreamsMatchSequentialExecution) {
  constexpr int kStreams = 4, kSlots = 12, kSlotBytes = 20000, kCopies = 600;
  for (uint32_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(seed);
    std::unique_ptr<Arena> arena = MakeArena(kSlots * kSlotBytes);
    std::vector<std::byte> expected(kSlots * kSlotBytes);
    for (std::byte& b : expected) b = static_cast<std::byte>(random());
    const std::vector<std::byte> start = expected;
    std::array<std::unique_ptr<Stream>, kStreams> streams;
    for (int s = 0; s < kStreams; ++s) streams[s] = MakeStream(absl::StrCat("s", s));
    ASSERT_TRUE(streams[0]->Copy(arena->base(), start.data(), start.size()).ok());
    ASSERT_TRUE(streams[0]->Synchronize().ok());

    // For each slot, the stream of its last write and the streams of the reads since. Each (slot, stream) has an event,
    // which is recorded over and over.
    struct Access {
      bool pending = false;
      std::unique_ptr<Event> event;
    };
    std::array<std::array<Access, kStreams>, kSlots> reads, writes;
    for (int slot = 0; slot < kSlots; ++slot) {
      for (int s = 0; s < kStreams; ++s) {
        reads[slot][s].event = MakeEvent();
        writes[slot][s].event = MakeEvent();
      }
    }
    for (int i = 0; i < kCopies; ++i) {
      const int s = random() % kStreams, from = random() % kSlots;
      const int to = (from + 1 + random() % (kSlots - 1)) % kSlots;
      const int64_t begin = random() % kSlotBytes, size = random() % (kSlotBytes - begin);
      const auto wait = [&](std::array<Access, kStreams>& accesses) {
        for (int other = 0; other < kStreams; ++other) {
          if (!accesses[other].pending || other == s) continue;
          ASSERT_TRUE(streams[s]->Wait(*accesses[other].event).ok());
        }
      };
      wait(writes[from]);
      wait(writes[to]);
      wait(reads[to]);
      ASSERT_TRUE(streams[s]
                      ->Copy(arena->base() + to * kSlotBytes + begin, arena->base() + from * kSlotBytes + begin, size)
                      .ok());
      std::memcpy(&expected[to * kSlotBytes + begin], &expected[from * kSlotBytes + begin], size);
      for (int other = 0; other < kStreams; ++other) {
        reads[to][other].pending = false;
        writes[to][other].pending = other == s;
      }
      reads[from][s].pending = true;
      ASSERT_TRUE(streams[s]->Record(*reads[from][s].event).ok());
      ASSERT_TRUE(streams[s]->Record(*writes[to][s].event).ok());
    }
    for (auto& stream : streams) ASSERT_TRUE(stream->Synchronize().ok());
    std::vector<std::byte> found(kSlots * kSlotBytes);
    ASSERT_TRUE(streams[3]->Copy(found.data(), arena->base(), found.size()).ok());
    ASSERT_TRUE(streams[3]->Synchronize().ok());
    ASSERT_TRUE(found == expected);
  }
}

}  // namespace

std::unique_ptr<Stream> DeviceConformance::MakeStream(absl::string_view name) {
  absl::StatusOr<std::unique_ptr<Stream>> stream = device_->CreateStream(name);
  EXPECT_TRUE(stream.ok()) << stream.status();
  return *std::move(stream);
}

std::unique_ptr<Event> DeviceConformance::MakeEvent() {
  absl::StatusOr<std::unique_ptr<Event>> event = device_->CreateEvent();
  EXPECT_TRUE(event.ok()) << event.status();
  return *std::move(event);
}

std::unique_ptr<Arena> DeviceConformance::MakeArena(int64_t size_bytes) {
  absl::StatusOr<std::unique_ptr<Arena>> arena = device_->Allocate(size_bytes);
  EXPECT_TRUE(arena.ok()) << arena.status();
  return *std::move(arena);
}

}  // namespace shale
