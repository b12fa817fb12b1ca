#include "kernels/cuda/host/stand_in_runtime.h"

#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/cuda/host/stand_in_stream.h"

namespace shale::cuda_on_host {
namespace {

// 20 parts per million fast, and at zero when the host's clock was here.
constexpr int64_t kClockStart_ns = 1'000'000'000;
int64_t DeviceNow() {
  const int64_t host = std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  const int64_t since = host - kClockStart_ns;
  return since + since / 50'000;
}

// The current device of a thread, for the runtime that it last set it of.
thread_local const void* current_runtime = nullptr;
thread_local int current_ordinal = 0;

}  // namespace

StandInRuntime::StandInRuntime(const StandInOptions& options) : options_(options) {
  for (int i = 0; i < options_.devices; ++i) gpus_.emplace_back();
}

StandInRuntime::~StandInRuntime() {
  for (StandInStream& stream : streams_) stream.work.reset();
  for (Allocation* allocation : allocations_) UnmapMemory(*allocation);
}

std::vector<std::string> StandInRuntime::misuse() const {
  std::lock_guard lock(mutex_);
  return misuse_;
}

absl::Status StandInRuntime::CheckAllReleased() const {
  std::lock_guard lock(mutex_);
  int streams = 0, events = 0;
  for (const StandInStream& stream : streams_) streams += stream.work != nullptr;
  for (const StandInEvent& event : events_) events += !event.destroyed;
  if (streams + events == 0 && allocations_.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("not released: ", allocations_.size(), " allocations, ", streams,
                                                    " streams, ", events, " events"));
}

CudaStreamPriority StandInRuntime::PriorityOf(cuda::StreamHandle stream) const {
  return static_cast<StandInStream*>(static_cast<Stream*>(stream))->priority;
}

int StandInRuntime::current() const { return current_runtime == this ? current_ordinal : 0; }

absl::Status StandInRuntime::Misuse(const char* call, absl::string_view what) {
  const std::string text = absl::StrCat(call, ": ", what);
  std::lock_guard lock(mutex_);
  misuse_.push_back(text);
  return absl::InvalidArgumentError(text);
}

absl::Status StandInRuntime::ErrorOf(const char* call, int ordinal) {
  Gpu& gpu = gpus_[ordinal];
  if (!gpu.dead.load(std::memory_order_relaxed)) return absl::OkStatus();
  std::lock_guard lock(mutex_);
  return absl::Status(gpu.error.code(), absl::StrCat(call, ": ", gpu.error.message()));
}

void StandInRuntime::Kill(Gpu& gpu, absl::Status error) {
  std::lock_guard lock(mutex_);
  if (gpu.dead.load(std::memory_order_relaxed)) return;
  gpu.error = std::move(error);
  gpu.dead.store(true, std::memory_order_relaxed);
}

absl::StatusOr<int> StandInRuntime::DeviceCount() { return options_.devices; }

absl::Status StandInRuntime::SetDevice(int ordinal) {
  if (ordinal < 0 || ordinal >= options_.devices) {
    return Misuse("cudaSetDevice", absl::StrCat("device ", ordinal, " of ", options_.devices));
  }
  current_runtime = this;
  current_ordinal = ordinal;
  return ErrorOf("cudaSetDevice", ordinal);
}

absl::StatusOr<CudaDeviceProperties> StandInRuntime::Properties(int ordinal) {
  if (ordinal < 0 || ordinal >= options_.devices) {
    return Misuse("cudaGetDeviceProperties", absl::StrCat("device ", ordinal, " of ", options_.devices));
  }
  SHALE_RETURN_IF_ERROR(ErrorOf("cudaGetDeviceProperties", ordinal));
  std::lock_guard lock(mutex_);
  return CudaDeviceProperties{.name = "stand-in for a GPU",
                              .compute_major = 9,
                              .compute_minor = 0,
                              .sm_count = 1,
                              .total_bytes = options_.memory_bytes,
                              .free_bytes = options_.memory_bytes - gpus_[ordinal].allocated_bytes};
}

absl::Status StandInRuntime::EnablePeerAccess(int peer) {
  if (peer < 0 || peer >= options_.devices || peer == current()) {
    return Misuse("cudaDeviceEnablePeerAccess", absl::StrCat("device ", peer, " is no peer of ", current()));
  }
  return ErrorOf("cudaDeviceEnablePeerAccess", current());
}

absl::Status StandInRuntime::TakeLastError() { return ErrorOf("cudaGetLastError", current()); }

absl::StatusOr<cuda::StreamHandle> StandInRuntime::CreateStream(CudaStreamPriority priority) {
  SHALE_RETURN_IF_ERROR(ErrorOf("cudaStreamCreateWithPriority", current()));
  std::lock_guard lock(mutex_);
  StandInStream& stream = streams_.emplace_back();
  stream.ordinal = current();
  stream.priority = priority;
  stream.submit = [this, &stream](std::function<absl::Status()> kernel) {
    return SubmitKernel(stream, std::move(kernel));
  };
  const std::string name = absl::StrCat("gpu ", current(), " stream ", streams_.size());
  SHALE_ASSIGN_OR_RETURN(stream.work, CpuStream::Create({.name = name, .thread_name = name}, stream.progress));
  return static_cast<Stream*>(&stream);
}

absl::Status StandInRuntime::CheckStream(const char* call, cuda::StreamHandle handle) {
  if (handle == nullptr) return Misuse(call, "the default stream, which waits for all others");
  const auto& stream = *static_cast<StandInStream*>(static_cast<Stream*>(handle));
  if (stream.work == nullptr) return Misuse(call, "a stream that was destroyed");
  return ErrorOf(call, stream.ordinal);
}

absl::Status StandInRuntime::DestroyStream(cuda::StreamHandle handle) {
  const absl::Status status = CheckStream("cudaStreamDestroy", handle);
  if (status.code() == absl::StatusCode::kInvalidArgument) return status;
  static_cast<StandInStream*>(static_cast<Stream*>(handle))->work.reset();
  return status;
}

absl::Status StandInRuntime::SynchronizeStream(cuda::StreamHandle handle) {
  constexpr const char* kCall = "cudaStreamSynchronize";
  const absl::Status status = CheckStream(kCall, handle);
  if (status.code() == absl::StatusCode::kInvalidArgument) return status;
  auto& stream = *static_cast<StandInStream*>(static_cast<Stream*>(handle));
  SHALE_RETURN_IF_ERROR(stream.work->Synchronize());
  return ErrorOf(kCall, stream.ordinal);
}

absl::Status StandInRuntime::Submit(StandInStream& stream, std::vector<Allocation*> uses,
                                    std::function<absl::Status()> work) {
  for (Allocation* used : uses) used->uses.fetch_add(1, std::memory_order_relaxed);
  Gpu& gpu = gpus_[stream.ordinal];
  return stream.work->Enqueue([this, &gpu, uses = std::move(uses), work = std::move(work)] {
    absl::Status status = gpu.dead.load(std::memory_order_relaxed) ? absl::OkStatus() : work();
    for (Allocation* used : uses) used->uses.fetch_sub(1, std::memory_order_relaxed);
    if (!status.ok()) Kill(gpu, std::move(status));
    return absl::OkStatus();
  });
}

absl::Status StandInRuntime::SubmitKernel(StandInStream& stream, std::function<absl::Status()> kernel) {
  constexpr const char* kCall = "cudaLaunchKernelEx";
  std::vector<Allocation*> operands = TakeOperands();
  SHALE_RETURN_IF_ERROR(CheckStream(kCall, static_cast<Stream*>(&stream)));
  if (stream.ordinal != current()) {
    return Misuse(kCall, absl::StrCat("a stream of device ", stream.ordinal, " while ", current(), " is current"));
  }
  if (kernels_left_.fetch_sub(1, std::memory_order_relaxed) == 1) {
    kernel = [] {
      return absl::InternalError("an illegal memory access was encountered (cudaErrorIllegalAddress)");
    };
  }
  return Submit(stream, std::move(operands), [&stream, kernel = std::move(kernel)] {
    ++stream.seed;  // Another order of blocks and threads.
    return kernel();
  });
}

absl::Status StandInRuntime::LaunchHostFunction(void (*function)(void*), void* argument, cuda::StreamHandle stream) {
  SHALE_RETURN_IF_ERROR(CheckStream("cudaLaunchHostFunc", stream));
  return Submit(*static_cast<StandInStream*>(static_cast<Stream*>(stream)), {}, [function, argument] {
    function(argument);
    return absl::OkStatus();
  });
}

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
  auto& stream = *static_cast<StandInStream*>(static_cast<Stream*>(stream_handle));
  if (event.ordinal != stream.ordinal) return Misuse(kCall, "an event and a stream of different devices");
  event.stream = &stream;
  event.record = ++stream.recorded;
  // Not by Submit: the count goes on when the device has failed, so that nobody waits for ever.
  return stream.work->Enqueue([&event, &stream] {
    event.device_ns.store(DeviceNow(), std::memory_order_relaxed);
    stream.reached.Advance();
    return absl::OkStatus();
  });
}

absl::StatusOr<bool> StandInRuntime::EventReached(cuda::EventHandle handle) {
  SHALE_RETURN_IF_ERROR(CheckEvent("cudaEventQuery", handle));
  const auto& event = *static_cast<StandInEvent*>(handle);
  if (event.stream == nullptr) return true;
  if (event.stream->reached.value() < event.record) return false;
  event.stream->reached.AwaitAtLeast(event.record);  // Returns at once, and orders what came before.
  return true;
}

absl::Status StandInRuntime::SynchronizeEvent(cuda::EventHandle handle) {
  constexpr const char* kCall = "cudaEventSynchronize";
  SHALE_RETURN_IF_ERROR(CheckEvent(kCall, handle));
  const auto& event = *static_cast<StandInEvent*>(handle);
  if (event.stream != nullptr) event.stream->reached.AwaitAtLeast(event.record);
  return ErrorOf(kCall, event.ordinal);
}

absl::StatusOr<double> StandInRuntime::ElapsedMilliseconds(cuda::EventHandle begin, cuda::EventHandle end) {
  constexpr const char* kCall = "cudaEventElapsedTime";
  for (cuda::EventHandle handle : {begin, end}) {
    SHALE_RETURN_IF_ERROR(CheckEvent(kCall, handle));
    const auto& event = *static_cast<StandInEvent*>(handle);
    if (event.kind != CudaEventKind::kTime) return Misuse(kCall, "an event that takes no time");
    if (event.stream == nullptr) return Misuse(kCall, "an event that was never recorded");
    SHALE_ASSIGN_OR_RETURN(const bool reached, EventReached(handle));
    if (!reached) return Misuse(kCall, "an event that has not been reached");
  }
  const int64_t ns = static_cast<StandInEvent*>(end)->device_ns.load(std::memory_order_relaxed) -
                     static_cast<StandInEvent*>(begin)->device_ns.load(std::memory_order_relaxed);
  return static_cast<float>(ns * 1e-6);  // CUDA has no more digits.
}

absl::Status StandInRuntime::WaitEvent(cuda::StreamHandle stream_handle, cuda::EventHandle event_handle) {
  constexpr const char* kCall = "cudaStreamWaitEvent";
  SHALE_RETURN_IF_ERROR(CheckEvent(kCall, event_handle));
  SHALE_RETURN_IF_ERROR(CheckStream(kCall, stream_handle));
  const auto& event = *static_cast<StandInEvent*>(event_handle);
  auto& stream = *static_cast<StandInStream*>(static_cast<Stream*>(stream_handle));
  if (event.stream == nullptr || event.stream == &stream) return absl::OkStatus();
  return stream.work->Enqueue([awaited = event.stream, record = event.record] {
    awaited->reached.AwaitAtLeast(record);
    return absl::OkStatus();
  });
}

}  // namespace shale::cuda_on_host
