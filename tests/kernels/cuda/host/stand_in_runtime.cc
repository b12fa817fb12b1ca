#include "tests/kernels/cuda/host/stand_in_runtime.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "tests/kernels/cuda/host/stand_in_stream.h"

namespace shale::cuda_on_host {
namespace {

// A thread's current device, and the runtime for which it was set last.
thread_local const void* current_runtime = nullptr;
thread_local int current_ordinal = 0;

absl::Status IllegalAccess() {
  return absl::InternalError("an illegal memory access was encountered (cudaErrorIllegalAddress)");
}

}  // namespace

StandInRuntime::StandInRuntime(const StandInOptions& options) : options_(options) {
  for (int i = 0; i < options_.devices; ++i) gpus_.emplace_back();
}

StandInRuntime::~StandInRuntime() {
  for (StandInStream& stream : streams_) stream.work.reset();
  for (StandInGraph& graph : graphs_) {
    for (StandInStream& stream : graph.side_streams) stream.work.reset();
  }
  for (Allocation* allocation : allocations_) UnmapMemory(*allocation);
}

std::vector<std::string> StandInRuntime::misuse() const {
  std::lock_guard lock(mutex_);
  return misuse_;
}

absl::Status StandInRuntime::CheckAllReleased() const {
  std::lock_guard lock(mutex_);
  int streams = 0, events = 0, graphs = 0;
  for (const StandInStream& stream : streams_) streams += stream.work != nullptr;
  for (const StandInEvent& event : events_) events += !event.destroyed;
  for (const StandInGraph& graph : graphs_) graphs += !graph.destroyed;
  if (streams + events + graphs == 0 && allocations_.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("not released: ", allocations_.size(), " allocations, ", streams,
                                                    " streams, ", events, " events, ", graphs, " graphs"));
}

CudaStreamPriority StandInRuntime::PriorityOf(cuda::StreamHandle stream) const { return AsStream(stream).priority; }

int StandInRuntime::current() const { return current_runtime == this ? current_ordinal : 0; }

absl::Status StandInRuntime::Misuse(const char* call, absl::string_view what) {
  const std::string text = absl::StrCat(call, ": ", what);
  std::lock_guard lock(mutex_);
  misuse_.push_back(text);
  return absl::InvalidArgumentError(text);
}

absl::Status StandInRuntime::CheckTaking(const char* call, absl::string_view what) {
  if (!forbids_taking_.load(std::memory_order_relaxed)) return absl::OkStatus();
  return Misuse(call, absl::StrCat(what, " after everything was said to be taken"));
}

absl::Status StandInRuntime::LoadModule(absl::string_view name) { return CheckTaking("cuModuleLoadData", name); }

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
  return CudaDeviceProperties{.name = "stand-in for a GPU",
                              .compute_major = options_.compute_major,
                              .compute_minor = options_.compute_minor,
                              .sm_count = 1,
                              .total_bytes = options_.memory_bytes};
}

absl::StatusOr<int64_t> StandInRuntime::FreeBytes() {
  SHALE_RETURN_IF_ERROR(ErrorOf("cudaMemGetInfo", current()));
  std::lock_guard lock(mutex_);
  return options_.memory_bytes - gpus_[current()].allocated_bytes;
}

absl::Status StandInRuntime::SynchronizeDevice() {
  constexpr const char* kCall = "cudaDeviceSynchronize";
  SHALE_RETURN_IF_ERROR(CheckNoCapture(kCall));
  std::vector<std::shared_ptr<CpuStream>> streams;
  {
    std::lock_guard lock(mutex_);
    for (const StandInStream& stream : streams_) {
      if (stream.ordinal == current() && stream.work != nullptr) streams.push_back(stream.work);
    }
  }
  for (const auto& stream : streams) SHALE_RETURN_IF_ERROR(stream->Synchronize());
  return ErrorOf(kCall, current());
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
  stream.priority = priority;
  SHALE_RETURN_IF_ERROR(OpenStream(stream, current(), absl::StrCat("gpu ", current(), " stream ", streams_.size())));
  return static_cast<Stream*>(&stream);
}

absl::Status StandInRuntime::OpenStream(StandInStream& stream, int ordinal, const std::string& name) {
  stream.ordinal = ordinal;
  stream.order = options_.order;
  stream.turns = options_.interleave ? &turns_ : nullptr;
  stream.submit = [this, &stream](std::function<absl::Status()> kernel) {
    return SubmitKernel(stream, std::move(kernel));
  };
  CpuStream::Options options{.name = name, .thread_name = name};
  options.initialize = [&stream] { stream_of_this_thread = &stream; };
  SHALE_ASSIGN_OR_RETURN(stream.work, CpuStream::Create(std::move(options), stream.progress));
  return absl::OkStatus();
}

absl::Status StandInRuntime::CheckStream(const char* call, cuda::StreamHandle handle) {
  if (handle == nullptr) return Misuse(call, "the default stream, which waits for all others");
  const StandInStream& stream = AsStream(handle);
  if (stream.work == nullptr) return Misuse(call, "a stream that was destroyed");
  return ErrorOf(call, stream.ordinal);
}

absl::Status StandInRuntime::DestroyStream(cuda::StreamHandle handle) {
  const absl::Status status = CheckStream("cudaStreamDestroy", handle);
  if (status.code() == absl::StatusCode::kInvalidArgument) return status;
  StandInStream& stream = AsStream(handle);
  if (stream.capture != nullptr) return Misuse("cudaStreamDestroy", "a stream that is being captured");
  std::shared_ptr<CpuStream> work;  // Destroyed without the mutex, which its work may lock.
  {
    std::lock_guard lock(mutex_);
    work = std::move(stream.work);
  }
  return status;
}

absl::Status StandInRuntime::SynchronizeStream(cuda::StreamHandle handle) {
  constexpr const char* kCall = "cudaStreamSynchronize";
  const absl::Status status = CheckStream(kCall, handle);
  if (status.code() == absl::StatusCode::kInvalidArgument) return status;
  SHALE_RETURN_IF_ERROR(CheckNoCapture(kCall));
  StandInStream& stream = AsStream(handle);
  SHALE_RETURN_IF_ERROR(stream.work->Synchronize());
  return ErrorOf(kCall, stream.ordinal);
}

absl::Status StandInRuntime::Submit(StandInStream& stream, StandInWork work) {
  if (stream.capture == nullptr) return Run(stream, work);
  stream.capture->Add(stream, {.kind = StandInStep::Kind::kWork, .work = std::move(work)});
  return absl::OkStatus();
}

absl::Status StandInRuntime::Run(StandInStream& stream, const StandInWork& work) {
  for (Allocation* used : work.uses) used->uses.fetch_add(1, std::memory_order_relaxed);
  const bool fails = work.kernel && kernels_left_.fetch_sub(1, std::memory_order_relaxed) == 1;
  Gpu& gpu = gpus_[stream.ordinal];
  return stream.work->Enqueue([this, &gpu, uses = work.uses, run = work.run, fails] {
    absl::Status status;
    if (!gpu.dead.load(std::memory_order_relaxed)) status = fails ? IllegalAccess() : run();
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
  auto run = [kernel = std::move(kernel)] {
    ++stream_of_this_thread->seed;  // Each kernel runs in another order of blocks and threads.
    return kernel();
  };
  return Submit(stream, {.run = std::move(run), .uses = std::move(operands), .kernel = true});
}

absl::Status StandInRuntime::LaunchHostFunction(void (*function)(void*), void* argument, cuda::StreamHandle stream) {
  SHALE_RETURN_IF_ERROR(CheckStream("cudaLaunchHostFunc", stream));
  return Submit(AsStream(stream), {.run = [function, argument] {
                  function(argument);
                  return absl::OkStatus();
                }});
}

}  // namespace shale::cuda_on_host
