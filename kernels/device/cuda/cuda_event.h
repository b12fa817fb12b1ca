// CudaEventHandle, which owns an event of CUDA, and CudaEvent, the Event that uses it.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device/cuda/runtime.h"
#include "kernels/device/device.h"

namespace shale {

// Owns an event. The event belongs to the device that was current at Create. Borrows the runtime.
class CudaEventHandle {
 public:
  static absl::StatusOr<CudaEventHandle> Create(CudaRuntime& runtime, CudaEventKind kind) {
    absl::StatusOr<cuda::EventHandle> event = runtime.CreateEvent(kind);
    if (!event.ok()) return event.status();
    return CudaEventHandle(runtime, *event);
  }
  CudaEventHandle() = default;
  CudaEventHandle(CudaEventHandle&& other) noexcept { *this = std::move(other); }
  CudaEventHandle& operator=(CudaEventHandle&& other) noexcept {
    std::swap(runtime_, other.runtime_);
    std::swap(event_, other.event_);
    return *this;
  }
  // Ignores errors: whoever waited for the event's stream has reported them.
  ~CudaEventHandle() {
    if (event_ != nullptr) runtime_->DestroyEvent(event_).IgnoreError();
  }
  cuda::EventHandle get() const { return event_; }

 private:
  CudaEventHandle(CudaRuntime& runtime, cuda::EventHandle event) : runtime_(&runtime), event_(event) {}
  CudaRuntime* runtime_ = nullptr;
  cuda::EventHandle event_ = nullptr;
};

class CudaEvent : public Event {
 public:
  explicit CudaEvent(CudaEventHandle event) : event_(std::move(event)) {}

 private:
  friend class CudaStream;
  CudaEventHandle event_;
  absl::Status error_;  // The error, at that time, of the stream that recorded it last.
};

}  // namespace shale
