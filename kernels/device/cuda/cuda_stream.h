// CudaStream: a stream of a GPU.
//
// Errors. A call that CUDA refuses fails the stream, because later work must not run without it. An error of work on
// the device fails all streams of the device, shows at some later call, and stays to the end of the process. Either way
// every later call returns the stream's first error, and so do streams that wait for events recorded after it. A call
// with an object of another kind of device or a negative size is refused and does not fail the stream.
//
// Other code may end work of a stream early, for example by aborting a collective. To CUDA the work then looks
// finished. Code that can do so guards the stream (Guard), and an error of the guard is an error of the stream.
#pragma once

#include <cstdint>
#include <functional>
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

class CudaHostWork;  // cuda_host_work.h

// Tells whether enqueued work may have ended early, without its result. Thread-safe.
class StreamGuard {
 public:
  virtual ~StreamGuard() = default;
  // Returns OK, or why work may have ended early.
  virtual absl::Status status() const = 0;
};

// Only one thread at a time may use a stream: the rank's launching thread. Calls make the stream's device the thread's
// current device.
class CudaStream : public Stream {
 public:
  struct Options {
    std::string name;  // For error messages.
    int ordinal = 0;   // The device.
    CudaStreamPriority priority = CudaStreamPriority::kNormal;
    bool synchronous = false;  // Waits after every piece of work, so that a call returns its own error.
    bool marks = false;        // Mark and reached_mark work.
  };
  // Borrows `runtime` and `clock`. REQUIRES: the calling thread's current device is options.ordinal.
  static absl::StatusOr<std::unique_ptr<CudaStream>> Create(CudaRuntime& runtime, CudaClock& clock, Options options);
  // Returns `stream` as a CudaStream, or InvalidArgument if it belongs to another kind of device.
  static absl::StatusOr<CudaStream*> From(Stream& stream);

  // Waits until everything that was enqueued has finished.
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  // Calls launch(handle) at once. `launch` starts kernels or passes the handle to a library; its error fails the
  // stream.
  absl::Status Enqueue(absl::FunctionRef<absl::Status(cuda::StreamHandle)> launch);

  // Makes all later calls check guard->status(); Synchronize checks it after waiting. Adding a guard again has no
  // effect.
  void Guard(std::shared_ptr<const StreamGuard> guard);

  // Writes the mark to a word of host memory, which survives a failure of the device. Does nothing if marks are off.
  absl::Status Mark(uint32_t mark) override;
  std::optional<uint32_t> reached_mark() const override;

  absl::Status Record(Event& event) override;
  absl::Status Wait(const Event& event) override;
  // CUDA runs host functions on a thread of its own (cudaLaunchHostFunc), and may run those of several streams one
  // after another.
  absl::Status RunOnHost(std::function<absl::Status()> work) override;
  absl::Status RecordTime(int64_t* nanoseconds) override;
  absl::Status Synchronize() override;

  // Returns FailedPrecondition on a synchronous stream.
  absl::Status BeginCapture() override;
  absl::StatusOr<std::unique_ptr<Graph>> EndCapture() override;
  absl::StatusOr<CapturedCopy> CaptureCopy(void* to, const void* from, int64_t size_bytes) override;

  // Returns the handle, for libraries that keep it. They may use it only in the ways that `launch` of Enqueue may.
  cuda::StreamHandle handle() const { return stream_; }

 protected:
  absl::Status EnqueueCopy(void* to, const void* from, int64_t size_bytes) override;

 private:
  struct Time {
    CudaEventHandle event;
    int64_t* nanoseconds;
  };

  CudaStream(CudaRuntime& runtime, CudaClock& clock, Options options);
  // Makes `status` the stream's error if it is the first one. Returns the stream's error.
  absl::Status Settle(absl::Status status);
  absl::Status AskGuards();
  absl::Status ReadTimes();

  CudaRuntime& runtime_;
  CudaClock& clock_;
  const Options options_;
  cuda::StreamHandle stream_ = nullptr;
  absl::Status error_;                                     // The first error.
  uint32_t* mark_ = nullptr;                               // Pinned; null: marks are off.
  std::shared_ptr<const CudaClock::Reference> reference_;  // The reference of times_.
  std::vector<Time> times_;                                // Times recorded since the last Synchronize.
  std::vector<CudaEventHandle> spare_;                     // Events to reuse for later times.
  std::vector<std::shared_ptr<const StreamGuard>> guards_;
  std::unique_ptr<CudaHostWork> host_work_;  // Null until RunOnHost is called.
};

}  // namespace shale
