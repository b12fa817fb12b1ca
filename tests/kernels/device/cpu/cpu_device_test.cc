#include "kernels/device/cpu/cpu_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/integers.h"

namespace shale {
namespace {

using ::testing::HasSubstr;

int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0;
  statm >> pages >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

TEST(CpuDeviceTest, ArenasThatLiveTogetherShareTheMemoryLimit) {
  CpuDevice device({.memory_limit_bytes = 100000});
  absl::StatusOr<std::unique_ptr<Arena>> first = device.Allocate(60000);
  ASSERT_TRUE(first.ok());
  absl::StatusOr<std::unique_ptr<Arena>> second = device.Allocate(50000);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr("an arena of 50000 bytes does not fit: arenas may use 100000 bytes in all, and 60000 are "
                        "in use; 10000 bytes are missing"));
  EXPECT_TRUE(device.Allocate(40000).ok());
  first->reset();
  EXPECT_TRUE(device.Allocate(100000).ok());
}

TEST(CpuDeviceTest, AnArenaIsWritableToItsLastByteAndGivenBack) {
  constexpr int64_t kBytes = (int64_t{40} << 20) + 5;
  CpuDevice device;
  const int64_t before = ResidentBytes();
  {
    absl::StatusOr<std::unique_ptr<Arena>> arena = device.Allocate(kBytes);
    ASSERT_TRUE(arena.ok());
    EXPECT_EQ(reinterpret_cast<uintptr_t>((*arena)->base()) % (2 << 20), 0);
    std::memset((*arena)->base(), 1, kBytes);
    EXPECT_GE(ResidentBytes() - before, kBytes * 9 / 10);
  }
  EXPECT_LT(ResidentBytes() - before, kBytes / 10);
}

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

// Returns whether Linux has MADV_POPULATE_WRITE. Kernels before 5.14 do not.
bool CanPopulate() {
  const int64_t page = sysconf(_SC_PAGESIZE);
  void* address = mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const bool can = madvise(address, page, MADV_POPULATE_WRITE) == 0;
  munmap(address, page);
  return can;
}

// Returns how many of the pages that hold bytes [begin, end) of an arena are resident.
int64_t ResidentPages(const Arena& arena, int64_t begin, int64_t end) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  begin = RoundDown(begin, page);
  std::vector<unsigned char> resident(CeilDivide(end - begin, page));
  EXPECT_EQ(mincore(arena.base() + begin, end - begin, resident.data()), 0);
  return std::count_if(resident.begin(), resident.end(), [](unsigned char flags) { return (flags & 1) != 0; });
}

TEST(CpuDeviceTest, MakeResidentTakesThePagesOfItsRangesAndKeepsTheContents) {
  constexpr int64_t kMiB = int64_t{1} << 20, kBytes = 64 * kMiB + 5;
  const int64_t page = sysconf(_SC_PAGESIZE);
  for (int threads : {1, 3}) {
    CpuDevice device({.threads = threads});
    absl::StatusOr<std::unique_ptr<Arena>> arena = device.Allocate(kBytes);
    ASSERT_TRUE(arena.ok());
    std::byte* const base = (*arena)->base();
    base[5 * kMiB] = std::byte{7};
    (*arena)->MakeResident({});
    EXPECT_EQ(ResidentPages(**arena, 8 * kMiB, kBytes), 0);
    const ByteRange ranges[] = {{4 * kMiB - 3, 14 * kMiB + 7}, {20 * kMiB, 20 * kMiB}, {kBytes - 5 * kMiB, kBytes}};
    (*arena)->MakeResident(ranges);
    EXPECT_EQ(base[5 * kMiB], std::byte{7});
    // Huge pages may reach past the ends.
    EXPECT_EQ(ResidentPages(**arena, 0, 2 * kMiB), 0);
    EXPECT_EQ(ResidentPages(**arena, 16 * kMiB, 58 * kMiB), 0);
    if (!CanPopulate()) continue;
    EXPECT_EQ(ResidentPages(**arena, 4 * kMiB - 3, 14 * kMiB + 7), 10 * kMiB / page + 2);
    EXPECT_EQ(ResidentPages(**arena, kBytes - 5 * kMiB, kBytes), 5 * kMiB / page + 1);
    EXPECT_EQ(base[13 * kMiB], std::byte{0});
  }
}

TEST(CpuDeviceTest, InitializeRunsInTheStreamsThreadBeforeItsWork) {
  std::thread::id initialized;
  std::string name;
  CpuDevice device({.thread_name_prefix = "rank 3 ", .initialize = [&](absl::string_view stream) {
                      initialized = std::this_thread::get_id();
                      name = std::string(stream);
                    }});
  std::unique_ptr<Stream> stream = *device.CreateStream("reduce and scatter");
  std::thread::id worked;
  char thread_name[32] = {};
  ASSERT_TRUE(static_cast<CpuStream&>(*stream)
                  .Enqueue([&] {
                    worked = std::this_thread::get_id();
                    pthread_getname_np(pthread_self(), thread_name, sizeof(thread_name));
                    return absl::OkStatus();
                  })
                  .ok());
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_EQ(initialized, worked);
  EXPECT_NE(worked, std::this_thread::get_id());
  EXPECT_EQ(name, "reduce and scatter");
  EXPECT_STREQ(thread_name, "rank 3 reduce a");  // Linux keeps 15 bytes.
}

TEST(CpuDeviceTest, AnExceptionInInitializeFailsTheStream) {
  CpuDevice device({.initialize = [](absl::string_view) { throw std::runtime_error("no such setting"); }});
  std::unique_ptr<Stream> stream = *device.CreateStream("compute");
  (void)static_cast<CpuStream&>(*stream).Enqueue([] { return absl::OkStatus(); });
  EXPECT_THAT(std::string(stream->Synchronize().message()), HasSubstr("no such setting"));
}

TEST(CpuDeviceTest, AnObjectOfAnotherDeviceIsRefused) {
  class OtherEvent : public Event {};
  class OtherStream : public Stream {
   public:
    absl::Status Record(Event&) override { return absl::OkStatus(); }
    absl::Status Wait(const Event&) override { return absl::OkStatus(); }
    absl::Status RunOnHost(std::function<absl::Status()>) override { return absl::OkStatus(); }
    absl::Status RecordTime(int64_t*) override { return absl::OkStatus(); }
    absl::Status Synchronize() override { return absl::OkStatus(); }

   protected:
    absl::Status EnqueueCopy(void*, const void*, int64_t) override { return absl::OkStatus(); }
  };
  CpuDevice device;
  std::unique_ptr<Stream> stream = *device.CreateStream("compute");
  OtherEvent event;
  EXPECT_EQ(stream->Record(event).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(stream->Wait(event).code(), absl::StatusCode::kInvalidArgument);
  OtherStream other;
  EXPECT_EQ(CpuStream::From(other).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(*CpuStream::From(*stream), stream.get());
}

}  // namespace
}  // namespace shale
