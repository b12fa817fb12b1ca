// StandInRuntime: events and waits.
#include <chrono>

#include "kernels/check.h"
#include "tests/kernels/cuda/host/stand_in_runtime.h"
#include "tests/kernels/cuda/host/stand_in_stream.h"

namespace shale::cuda_on_host {
namespace {

// The device's clock runs 20 parts per million fast, and read zero when the host's clock read kClockStart_ns.
constexpr int64_t kClockStart_ns = 1'000'000'000;
int64_t DeviceNow() {
  const int64_t host = std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  const int64_t since = host - kClockStart_ns;
  return since + since / 50'000;
}

}  // namespace

absl::StatusOr<cuda::EventHandle> StandInRuntime::CreateEvent(CudaEventKind kind) {
  SHALE_RETURN_IF_ERROR(ErrorOf("cudaEventCreateWithFlags", current()));
  std::lock_guard lock(mutex_);
  StandInEvent& event = events_.emplace_back();
  event.kind = kind;
  event.ordinal = current();
  return &event;
}

absl::Status StandInRuntime::CheckEvent(const char* call, cuda::EventHandle handle) {
  if (handle == nullptr) return Misuse(call, "no event");
  const auto& event = *static_cast<StandInEvent*>(handle);
  if (event.destroyed) return Misuse(call, "an event that was destroyed");
  return ErrorOf(call, event.ordinal);
}

absl::Status StandInRuntime::DestroyEvent(cuda::EventHandle handle) {
  const absl::Status status = CheckEvent("cudaEventDestroy", handle);
  if (status.code() == absl::StatusCode::kInvalidArgument) return status;
  std::lock_guard lock(mutex_);
  static_cast<StandInEvent*>(handle)->destroyed = true;
  return status;
}

absl::Status StandInRuntime::RecordEvent(cuda::EventHandle event_handle, cuda::StreamHandle stream_handle) {
  constexpr const char* kCall = "cudaEventRecord";
  SHALE_RETURN_IF_ERROR(CheckEvent(kCall, event_handle));
  SHALE_RETURN_IF_ERROR(CheckStream(kCall, stream_handle));
  auto& event = *static_cast<StandInEvent*>(event_handle);
  StandInStream& stream = AsStream(stream_handle);
  if (event.ordinal != stream.ordinal) return Misuse(kCall, "an event and a stream of different devices");
  event.stream = &stream;
  event.capture = 0;
  if (stream.capture != nullptr) {
    event.capture = stream.capture->number;
    event.captured_step = stream.capture->Add(stream, {.kind = StandInStep::Kind::kRecord});
    return absl::OkStatus();
  }
  SHALE_ASSIGN_OR_RETURN(event.record, Reach(stream, &event));
  return absl::OkStatus();
}

// Does not use Run: the count must advance even after the device has failed, so that nobody waits forever.
absl::StatusOr<uint64_t> StandInRuntime::Reach(StandInStream& stream, StandInEvent* event) {
  SHALE_RETURN_IF_ERROR(stream.work->Enqueue([event, &stream] {
    if (event != nullptr) event->device_ns.store(DeviceNow(), std::memory_order_relaxed);
    stream.reached.Advance();
    return absl::OkStatus();
  }));
  return ++stream.recorded;
}

absl::Status StandInRuntime::CheckOutside(const char* call, cuda::EventHandle handle) {
  SHALE_RETURN_IF_ERROR(CheckEvent(call, handle));
  SHALE_RETURN_IF_ERROR(CheckNoCapture(call));
  if (static_cast<StandInEvent*>(handle)->capture == 0) return absl::OkStatus();
  return Misuse(call, "an event that was recorded in a capture, and never happens");
}

absl::StatusOr<bool> StandInRuntime::EventReached(cuda::EventHandle handle) {
  SHALE_RETURN_IF_ERROR(CheckOutside("cudaEventQuery", handle));
  const auto& event = *static_cast<StandInEvent*>(handle);
  if (event.stream == nullptr) return true;
  if (event.stream->reached.value() < event.record) return false;
  event.stream->reached.AwaitAtLeast(event.record);  // Returns at once. Acquires the stream's earlier work.
  return true;
}

absl::Status StandInRuntime::SynchronizeEvent(cuda::EventHandle handle) {
  constexpr const char* kCall = "cudaEventSynchronize";
  SHALE_RETURN_IF_ERROR(CheckOutside(kCall, handle));
  const auto& event = *static_cast<StandInEvent*>(handle);
  if (event.stream != nullptr) event.stream->reached.AwaitAtLeast(event.record);
  return ErrorOf(kCall, event.ordinal);
}

absl::StatusOr<double> StandInRuntime::ElapsedMilliseconds(cuda::EventHandle begin, cuda::EventHandle end) {
  constexpr const char* kCall = "cudaEventElapsedTime";
  for (cuda::EventHandle handle : {begin, end}) {
    SHALE_RETURN_IF_ERROR(CheckOutside(kCall, handle));
    const auto& event = *static_cast<StandInEvent*>(handle);
    if (event.kind != CudaEventKind::kTime) return Misuse(kCall, "an event that records no time");
    if (event.stream == nullptr) return Misuse(kCall, "an event that was never recorded");
    SHALE_ASSIGN_OR_RETURN(const bool reached, EventReached(handle));
    if (!reached) return Misuse(kCall, "an event that has not been reached");
  }
  const int64_t ns = static_cast<StandInEvent*>(end)->device_ns.load(std::memory_order_relaxed) -
                     static_cast<StandInEvent*>(begin)->device_ns.load(std::memory_order_relaxed);
  return static_cast<float>(ns * 1e-6);  // CUDA returns a float.
}

absl::Status StandInRuntime::WaitEvent(cuda::StreamHandle stream_handle, cuda::EventHandle event_handle) {
  constexpr const char* kCall = "cudaStreamWaitEvent";
  SHALE_RETURN_IF_ERROR(CheckEvent(kCall, event_handle));
  SHALE_RETURN_IF_ERROR(CheckStream(kCall, stream_handle));
  const auto& event = *static_cast<StandInEvent*>(event_handle);
  StandInStream& stream = AsStream(stream_handle);
  if (stream.capture != nullptr || event.capture != 0) return CaptureWait(stream, event);
  if (event.stream == nullptr) return absl::OkStatus();
  return Await(stream, *event.stream, event.record);
}

absl::Status StandInRuntime::Await(StandInStream& stream, StandInStream& awaited, uint64_t record) {
  if (&awaited == &stream) return absl::OkStatus();
  return stream.work->Enqueue([&awaited, record] {
    awaited.reached.AwaitAtLeast(record);
    return absl::OkStatus();
  });
}

}  // namespace shale::cuda_on_host
