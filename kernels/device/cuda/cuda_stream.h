// CudaStream: a stream of a GPU.
//
// Errors. A call that CUDA refuses fails the stream: what was to follow it must not run without it. What goes wrong on
// the device fails every stream of it, shows at some later call, and stays to the end of the process. Either way every
// call from then on returns the stream's first error, and so do streams that wait for events recorded after it. Objects
// of another kind of device and negative sizes are refused and fail nothing.
//
// Work of a stream may also be ended from elsewhere, as an aborted collective is: to CUDA it has finished. Whoever can
// do that to the stream's work guards the stream, and its error is the stream's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device/cuda/cuda_clock.h"
#include "kernels/device/cuda/cuda_event.h"
#include "kernels/device/cuda/runtime.h"
#include "kernels/device/device.h"

namespace shale {

// Why work that has been enqueued may have ended without doing what it was for. Thread-safe.
class StreamGuard {
 public:
  virtual ~StreamGuard() = default;
  virtual absl::Status status() const = 0;
};

// From one thread at a time, the rank's launching thread; its current device becomes the stream's.
class CudaStream : public Stream {
 public:
  struct Options {
    std::string name;  // For errors.
    int ordinal = 0;   // Of the device.
    CudaStreamPriority priority = CudaStreamPriority::kNormal;
    bool synchronous = false;  // Waits after everything that is enqueued: an error is that of the call that returns it.
    bool marks = false;        // Mark is to be had.
  };
  // Borrows `runtime` and `clock`. The calling thread's current device is options.ordinal.
  static absl::StatusOr<std::unique_ptr<CudaStream>> Create(CudaRuntime& runtime, CudaClock& clock, Options options);
  // `stream` as the CUDA stream that it is, or an error when it is another device's.
  static absl::StatusOr<CudaStream*> From(Stream& stream);

  // Waits until everything that was enqueued has finished.
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  // Calls launch(handle) at once, for it to start kernels or give the handle to a library. Its error is the stream's.
  absl::Status Enqueue(absl::FunctionRef<absl::Status(cuda::StreamHandle)> launch);

  // Calls from now on ask `guard`, Synchronize after it has waited. More often than once is the same.
  void Guard(std::shared_ptr<const StreamGuard> guard);

  // In a word of host memory, which outlives the device's failure. Nothing when marks are off.
  absl::Status Mark(uint32_t mark) override;
  std::optional<uint32_t> reached_mark() const override;

  absl::Status Record(Event& event) override;
  absl::Status Wait(const Event& event) override;
  absl::Status RecordTime(int64_t* nanoseconds) override;
  absl::Status Synchronize() override;

  // FailedPrecondition on a synchronous stream.
  absl::Status BeginCapture() override;
  absl::StatusOr<std::unique_ptr<Graph>> EndCapture() override;
  absl::StatusOr<CapturedCopy> CaptureCopy(void* to, const void* from, int64_t size_bytes) override;

  // For libraries that keep it; with it they must follow Enqueue's rules.
  cuda::StreamHandle handle() const { return stream_; }

 protected:
  absl::Status EnqueueCopy(void* to, const void* from, int64_t size_bytes) override;

 private:
  struct Time {
    CudaEventHandle event;
    int64_t* nanoseconds;
  };

  CudaStream(CudaRuntime& runtime, CudaClock& clock, Options options)
      : runtime_(runtime), clock_(clock), options_(std::move(options)) {}
  // Makes a call's error the stream's; returns the stream's.
  absl::Status Settle(absl::Status status);
  absl::Status AskGuards();
  absl::Status ReadTimes();

  CudaRuntime& runtime_;
  CudaClock& clock_;
  const Options options_;
  cuda::StreamHandle stream_ = nullptr;
  absl::Status error_;                                     // The first.
  uint32_t* mark_ = nullptr;                               // Pinned; null: marks are off.
  std::shared_ptr<const CudaClock::Reference> reference_;  // Of times_.
  std::vector<Time> times_;                                // Since the last Synchronize.
  std::vector<CudaEventHandle> spare_;                     // Events for further times.
  std::vector<std::shared_ptr<const StreamGuard>> guards_;
};

}  // namespace shale
