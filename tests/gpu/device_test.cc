// Tests the GPU as a Device: the conformance suite of all devices, kernels between copies, and the state after a kernel
// has failed.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/kernels.h"
#include "tests/gpu/gpu.h"
#include "tests/kernels/device/device_conformance.h"

namespace shale::testing {
namespace {

using ::testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(Gpu, DeviceConformance,
                         ::testing::Values(DeviceCase{"Streams", [] { return CreateGpuDevice(); }},
                                           DeviceCase{"Synchronous",
                                                      [] { return CreateGpuDevice({.synchronous = true}); }}),
                         CaseName);

constexpr int64_t kIntegers = 100'003, kBytes = 8 * kIntegers;

// Enqueues at[i] += by[i] for kIntegers int64 elements.
absl::Status AddTo(std::byte* at, const std::byte* by, Stream& stream) {
  return (*CudaStream::From(stream))->Enqueue([&](cuda::StreamHandle handle) {
    const std::byte* inputs[] = {at, by};
    return cuda::SumRanks(DType::kInt64, inputs, at, kIntegers, handle);
  });
}

class GpuDeviceTest : public ::testing::Test {
 protected:
  const std::unique_ptr<CudaDevice> device_ = CreateGpuDevice({.marks = true});
  const std::unique_ptr<Arena> sums_ = *device_->Allocate(kBytes), ones_ = *device_->Allocate(kBytes),
                               host_ = *device_->AllocatePinned(kBytes);
  int64_t* integers() { return reinterpret_cast<int64_t*>(host_->base()); }
  void FillOnes(Stream& stream) {
    std::fill_n(integers(), kIntegers, 1);
    ASSERT_TRUE(stream.Copy(ones_->base(), host_->base(), kBytes).ok());
    ASSERT_TRUE(stream.Synchronize().ok());
  }
};

TEST_F(GpuDeviceTest, KernelsRunBetweenTheCopiesBeforeAndAfterThem) {
  const std::unique_ptr<Stream> stream = *device_->CreateStream("compute");
  FillOnes(*stream);
  std::fill_n(integers(), kIntegers, 0);
  for (int turn = 0; turn < 50; ++turn) {
    ASSERT_TRUE(stream->Copy(sums_->base(), host_->base(), kBytes).ok());
    ASSERT_TRUE(AddTo(sums_->base(), ones_->base(), *stream).ok());
    ASSERT_TRUE(AddTo(sums_->base(), ones_->base(), *stream).ok());
    ASSERT_TRUE(stream->Copy(host_->base(), sums_->base(), kBytes).ok());
  }
  ASSERT_TRUE(stream->Synchronize().ok());
  for (int64_t i = 0; i < kIntegers; ++i) ASSERT_EQ(integers()[i], 100) << i;
}

TEST_F(GpuDeviceTest, AKernelOnOneStreamIsSeenByAnotherThatWaitsForIt) {
  const std::unique_ptr<Stream> streams[2] = {*device_->CreateStream("a"), *device_->CreateStream("gather")};
  const std::unique_ptr<Event> events[2] = {*device_->CreateEvent(), *device_->CreateEvent()};
  FillOnes(*streams[0]);
  constexpr int kTurns = 1000;
  for (int turn = 0; turn < kTurns; ++turn) {
    const int own = turn % 2, other = 1 - own;
    ASSERT_TRUE(streams[own]->Wait(*events[other]).ok());
    ASSERT_TRUE(AddTo(sums_->base(), ones_->base(), *streams[own]).ok());
    ASSERT_TRUE(streams[own]->Record(*events[own]).ok());
  }
  ASSERT_TRUE(streams[0]->Synchronize().ok());
  ASSERT_TRUE(streams[1]->Copy(host_->base(), sums_->base(), kBytes).ok());
  ASSERT_TRUE(streams[1]->Synchronize().ok());
  for (int64_t i = 0; i < kIntegers; ++i) ASSERT_EQ(integers()[i], kTurns) << i;
}

TEST_F(GpuDeviceTest, MarksTellHowFarAStreamCame) {
  const std::unique_ptr<Stream> stream = *device_->CreateStream("compute");
  EXPECT_EQ(stream->reached_mark(), 0u);
  for (uint32_t mark = 1; mark <= 100; ++mark) {
    ASSERT_TRUE(AddTo(sums_->base(), ones_->base(), *stream).ok());
    ASSERT_TRUE(stream->Mark(mark).ok());
  }
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_EQ(stream->reached_mark(), 100u);
}

// Makes a kernel fail, prints each expectation that does not hold, and exits with their number.
void FailAKernelAndExit() {
  const std::unique_ptr<CudaDevice> device = CreateGpuDevice({.marks = true});
  std::unique_ptr<Arena> arena = *device->Allocate(2 * kBytes);
  std::unique_ptr<Stream> stream = *device->CreateStream("compute"), other = *device->CreateStream("copy");
  int failures = 0;
  const auto expect = [&](bool holds, const std::string& what) {
    if (holds) return;
    std::fprintf(stderr, "%s\n", what.c_str());
    ++failures;
  };
  const auto is_illegal_access = [](const absl::Status& status) {
    return absl::StrContains(status.message(), "an illegal memory access was encountered");
  };
  expect(AddTo(arena->base(), arena->base() + kBytes, *stream).ok() && stream->Mark(41).ok(), "the first kernel");
  expect(stream->Synchronize().ok(), "waiting for the first kernel");
  // Reads 4 TiB beyond the arena, where no memory is mapped.
  (void)AddTo(arena->base(), arena->base() + (int64_t{1} << 42), *stream);
  (void)stream->Mark(42);
  const absl::Status error = stream->Synchronize();
  expect(is_illegal_access(error), absl::StrCat("the stream's error: ", error.ToString()));
  expect(stream->Synchronize() == error, "the stream's error stays");
  expect(stream->reached_mark() == 41u, absl::StrCat("mark ", stream->reached_mark().value_or(0)));
  expect(is_illegal_access(other->Synchronize()), absl::StrCat("another stream: ", other->Synchronize().ToString()));
  const absl::Status allocation = device->Allocate(1).status();
  expect(is_illegal_access(allocation), absl::StrCat("an allocation: ", allocation.ToString()));
  std::_Exit(failures);  // No CUDA object can be destroyed after this error.
}

TEST(GpuDeviceDeathTest, AFailedKernelFailsTheWholeGpuAndTheLastMarkStays) {
  EXPECT_EXIT(FailAKernelAndExit(), ::testing::ExitedWithCode(0), "");
}

TEST_F(GpuDeviceTest, NoMemoryIsAnErrorThatSaysWhatIsFreeAndFailsNothing) {
  const absl::Status error = device_->Allocate(device_->properties().total_bytes).status();
  EXPECT_EQ(error.code(), absl::StatusCode::kResourceExhausted) << error;
  EXPECT_THAT(std::string(error.message()), HasSubstr("bytes free of"));
  const std::unique_ptr<Stream> stream = *device_->CreateStream("compute");
  EXPECT_TRUE(AddTo(sums_->base(), ones_->base(), *stream).ok());
  EXPECT_TRUE(stream->Synchronize().ok());
}

}  // namespace
}  // namespace shale::testing
