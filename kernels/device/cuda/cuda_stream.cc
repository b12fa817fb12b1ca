#include "kernels/device/cuda/cuda_stream.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/device/cuda/cuda_graph.h"
#include "kernels/device/cuda/cuda_host_work.h"

namespace shale {
namespace {

absl::Status NotOfCuda(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("a CUDA stream was given ", what, " of another kind of device"));
}

}  // namespace

CudaStream::CudaStream(CudaRuntime& runtime, CudaClock& clock, Options options)
    : runtime_(runtime), clock_(clock), options_(std::move(options)) {}

absl::StatusOr<std::unique_ptr<CudaStream>> CudaStream::Create(CudaRuntime& runtime, CudaClock& clock,
                                                               Options options) {
  std::unique_ptr<CudaStream> stream(new CudaStream(runtime, clock, std::move(options)));
  SHALE_ASSIGN_OR_RETURN(stream->stream_, runtime.CreateStream(stream->options_.priority));
  if (stream->options_.marks) {
    SHALE_ASSIGN_OR_RETURN(void* word, runtime.MallocHost(sizeof(uint32_t)));
    stream->mark_ = static_cast<uint32_t*>(word);
    *stream->mark_ = 0;
  }
  return stream;
}

absl::StatusOr<CudaStream*> CudaStream::From(Stream& stream) {
  auto* cuda = dynamic_cast<CudaStream*>(&stream);
  if (cuda == nullptr) return absl::InvalidArgumentError("wanted a CUDA stream, found another device's");
  return cuda;
}

// Ignores errors: Synchronize has reported them, unless nobody called it.
CudaStream::~CudaStream() {
  if (stream_ == nullptr) return;
  runtime_.SetDevice(options_.ordinal).IgnoreError();
  runtime_.SynchronizeStream(stream_).IgnoreError();
  times_.clear();
  spare_.clear();
  runtime_.DestroyStream(stream_).IgnoreError();
  if (mark_ != nullptr) runtime_.FreeHost(mark_).IgnoreError();
}

absl::Status CudaStream::Settle(absl::Status status) {
  if (error_.ok() && !status.ok()) {
    error_ = absl::Status(status.code(), absl::StrCat("stream ", options_.name, ": ", status.message()));
  }
  return error_;
}

void CudaStream::Guard(std::shared_ptr<const StreamGuard> guard) {
  if (std::find(guards_.begin(), guards_.end(), guard) == guards_.end()) guards_.push_back(std::move(guard));
}

absl::Status CudaStream::AskGuards() {
  for (const auto& guard : guards_) Settle(guard->status()).IgnoreError();
  return error_;
}

absl::Status CudaStream::Enqueue(absl::FunctionRef<absl::Status(cuda::StreamHandle)> launch) {
  SHALE_RETURN_IF_ERROR(AskGuards());
  SHALE_RETURN_IF_ERROR(Settle(runtime_.SetDevice(options_.ordinal)));
  SHALE_RETURN_IF_ERROR(Settle(launch(stream_)));
  if (!options_.synchronous) return absl::OkStatus();
  Settle(runtime_.SynchronizeStream(stream_)).IgnoreError();
  return AskGuards();
}

absl::Status CudaStream::Mark(uint32_t mark) {
  if (mark_ == nullptr) return error_;
  return Enqueue([&](cuda::StreamHandle stream) { return runtime_.WriteWordAsync(mark_, mark, stream); });
}

absl::Status CudaStream::Record(Event& event) {
  auto* cuda_event = dynamic_cast<CudaEvent*>(&event);
  if (cuda_event == nullptr) return NotOfCuda("an event");
  cuda_event->error_ =
      Enqueue([&](cuda::StreamHandle stream) { return runtime_.RecordEvent(cuda_event->event_.get(), stream); });
  return cuda_event->error_;
}

absl::Status CudaStream::Wait(const Event& event) {
  const auto* cuda_event = dynamic_cast<const CudaEvent*>(&event);
  if (cuda_event == nullptr) return NotOfCuda("an event");
  if (error_.ok() && !cuda_event->error_.ok()) error_ = cuda_event->error_;
  return Enqueue([&](cuda::StreamHandle stream) { return runtime_.WaitEvent(stream, cuda_event->event_.get()); });
}

absl::Status CudaStream::EnqueueCopy(void* to, const void* from, int64_t size_bytes) {
  if (size_bytes < 0) return absl::InvalidArgumentError(absl::StrCat("a copy of ", size_bytes, " bytes"));
  if (size_bytes == 0) return error_;
  return Enqueue([&](cuda::StreamHandle stream) -> absl::Status {
    const absl::Status status = runtime_.CopyAsync(to, from, size_bytes, stream);
    if (status.ok()) return status;
    return absl::Status(status.code(), absl::StrCat("copy of ", size_bytes, " bytes: ", status.message()));
  });
}

absl::Status CudaStream::RunOnHost(std::function<absl::Status()> work) {
  if (host_work_ == nullptr) {
    host_work_ = std::make_unique<CudaHostWork>(options_.name);
    Guard(host_work_->guard());
  }
  return Enqueue([&](cuda::StreamHandle stream) -> absl::Status {
    SHALE_ASSIGN_OR_RETURN(const bool captured, runtime_.IsCapturing(stream));
    return runtime_.LaunchHostFunction(CudaHostWork::Call, host_work_->Add(std::move(work), captured), stream);
  });
}

absl::Status CudaStream::RecordTime(int64_t* nanoseconds) {
  return Enqueue([&](cuda::StreamHandle stream) -> absl::Status {
    if (times_.empty()) {
      SHALE_ASSIGN_OR_RETURN(reference_, clock_.Now());
    }
    if (spare_.empty()) {
      SHALE_ASSIGN_OR_RETURN(CudaEventHandle event, CudaEventHandle::Create(runtime_, CudaEventKind::kTime));
      spare_.push_back(std::move(event));
    }
    SHALE_RETURN_IF_ERROR(runtime_.RecordEvent(spare_.back().get(), stream));
    times_.push_back({std::move(spare_.back()), nanoseconds});
    spare_.pop_back();
    return absl::OkStatus();
  });
}

absl::Status CudaStream::ReadTimes() {
  for (Time& time : times_) {
    SHALE_ASSIGN_OR_RETURN(const double since, runtime_.ElapsedMilliseconds(reference_->event.get(), time.event.get()));
    *time.nanoseconds = reference_->host_ns + std::llround(since * 1e6);
    spare_.push_back(std::move(time.event));
  }
  return absl::OkStatus();
}

absl::Status CudaStream::Synchronize() {
  Settle(runtime_.SetDevice(options_.ordinal)).IgnoreError();
  // Waits after an error too: earlier work may still run.
  const absl::Status finished = runtime_.SynchronizeStream(stream_);
  // After an error of CUDA, host work may never run, or still run.
  if (finished.ok() && host_work_ != nullptr) host_work_->DropFinished();
  Settle(finished).IgnoreError();
  AskGuards().IgnoreError();
  if (error_.ok()) Settle(ReadTimes()).IgnoreError();
  times_.clear();
  return error_;
}

absl::Status CudaStream::BeginCapture() {
  if (options_.synchronous) {
    return absl::FailedPreconditionError(
        absl::StrCat("stream ", options_.name, " is synchronous and cannot be captured"));
  }
  return Enqueue([&](cuda::StreamHandle stream) { return runtime_.BeginCapture(stream); });
}

absl::StatusOr<std::unique_ptr<Graph>> CudaStream::EndCapture() {
  Settle(runtime_.SetDevice(options_.ordinal)).IgnoreError();
  const absl::StatusOr<cuda::GraphHandle> handle = runtime_.EndCapture(stream_);
  Settle(handle.status()).IgnoreError();
  std::unique_ptr<Graph> graph;
  if (handle.ok()) graph = std::make_unique<CudaGraph>(runtime_, *handle);
  if (!error_.ok()) return error_;
  return graph;
}

absl::StatusOr<CapturedCopy> CudaStream::CaptureCopy(void* to, const void* from, int64_t size_bytes) {
  SHALE_RETURN_IF_ERROR(Copy(to, from, size_bytes));
  if (size_bytes == 0) return CapturedCopy{};
  CapturedCopy copy{.size_bytes = size_bytes};
  SHALE_RETURN_IF_ERROR(Enqueue([&](cuda::StreamHandle stream) -> absl::Status {
    SHALE_ASSIGN_OR_RETURN(copy.node, runtime_.LastCaptured(stream));
    return absl::OkStatus();
  }));
  return copy;
}

std::optional<uint32_t> CudaStream::reached_mark() const {
  if (mark_ == nullptr) return std::nullopt;
  return std::atomic_ref<uint32_t>(*mark_).load(std::memory_order_acquire);
}

}  // namespace shale
