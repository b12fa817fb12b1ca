// CudaRuntime: an interface of the CUDA runtime calls that we make, so that everything above it also runs without a GPU
// (tests/kernels/cuda/host/stand_in_runtime.h).
//
// Each function does what the CUDA function of the same name does. An error names the call and has CUDA's text. Out of
// memory is ResourceExhausted, a wrong argument is InvalidArgument, a missing driver or GPU is FailedPrecondition with
// advice on what to do, and any other error is Internal. An error of work on the device is reported by some later call
// and by every call after it. Only a new process recovers from that.
//
// Thread-safe. Each thread has its own current device. Streams and events belong to the device that was current when
// they were created, and so does the work that is launched on them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device/cuda/handles.h"

namespace shale {

struct CudaDeviceProperties {
  std::string name;
  int compute_major = 0, compute_minor = 0;  // Compute capability: 9 and 0 for Hopper.
  int sm_count = 0;                          // Streaming multiprocessors.
  int64_t total_bytes = 0;                   // Total memory.
};

enum class CudaStreamPriority : uint8_t { kNormal, kHighest };
enum class CudaEventKind : uint8_t { kOrder, kTime };  // kTime costs a little more to record.

class CudaRuntime {
 public:
  virtual ~CudaRuntime() = default;

  virtual absl::StatusOr<int> DeviceCount() = 0;
  virtual absl::Status SetDevice(int ordinal) = 0;  // For the calling thread.
  // Creates no context on the device, which would take memory there.
  virtual absl::StatusOr<CudaDeviceProperties> Properties(int ordinal) = 0;
  // Returns the memory of the current device that is free now.
  virtual absl::StatusOr<int64_t> FreeBytes() = 0;
  // Waits for all streams of the current device.
  virtual absl::Status SynchronizeDevice() = 0;
  // Lets kernels and copies of the current device access the memory of `peer`. May be called again.
  virtual absl::Status EnablePeerAccess(int peer) = 0;

  virtual absl::StatusOr<void*> Malloc(int64_t size_bytes) = 0;
  virtual absl::Status Free(void* memory) = 0;                       // Waits for all work of the device.
  virtual absl::StatusOr<void*> MallocHost(int64_t size_bytes) = 0;  // Pinned.
  virtual absl::Status FreeHost(void* memory) = 0;

  // Streams do not synchronize with the default stream.
  virtual absl::StatusOr<cuda::StreamHandle> CreateStream(CudaStreamPriority priority) = 0;
  virtual absl::Status DestroyStream(cuda::StreamHandle stream) = 0;
  virtual absl::Status SynchronizeStream(cuda::StreamHandle stream) = 0;

  virtual absl::StatusOr<cuda::EventHandle> CreateEvent(CudaEventKind kind) = 0;
  virtual absl::Status DestroyEvent(cuda::EventHandle event) = 0;
  virtual absl::Status RecordEvent(cuda::EventHandle event, cuda::StreamHandle stream) = 0;
  virtual absl::StatusOr<bool> EventReached(cuda::EventHandle event) = 0;  // Does not wait.
  virtual absl::Status SynchronizeEvent(cuda::EventHandle event) = 0;
  // Returns the time from `begin` to `end`. REQUIRES: both are of kind kTime and have been reached.
  virtual absl::StatusOr<double> ElapsedMilliseconds(cuda::EventHandle begin, cuda::EventHandle end) = 0;

  // The functions from here to LaunchHostFunction only enqueue.
  virtual absl::Status WaitEvent(cuda::StreamHandle stream, cuda::EventHandle event) = 0;
  // Copies between any two kinds of memory. If host memory is not pinned, the call waits for the stream.
  virtual absl::Status CopyAsync(void* to, const void* from, int64_t size_bytes, cuda::StreamHandle stream) = 0;
  virtual absl::Status SetBytesAsync(void* to, uint8_t value, int64_t size_bytes, cuda::StreamHandle stream) = 0;
  // Writes a word of pinned memory when all earlier work of the stream has finished.
  virtual absl::Status WriteWordAsync(uint32_t* to, uint32_t value, cuda::StreamHandle stream) = 0;
  // Calls function(argument) on a thread of CUDA. `function` must not call CUDA. It is not called after an error.
  virtual absl::Status LaunchHostFunction(void (*function)(void*), void* argument, cuda::StreamHandle stream) = 0;

  // Graphs. A capture restricts the calls of the capturing thread only (cudaStreamCaptureModeThreadLocal).
  virtual absl::Status BeginCapture(cuda::StreamHandle stream) = 0;
  virtual absl::StatusOr<bool> IsCapturing(cuda::StreamHandle stream) = 0;  // Whether new work is captured.
  // Ends the capture (cudaStreamEndCapture) and makes its graph ready to launch (cudaGraphInstantiate). Enqueues the
  // graph's upload (cudaGraphUpload) on the stream, so that the first launch takes no more memory. Each kernel of the
  // graph keeps the priority of the stream on which it was captured, whichever stream the graph is launched on. Kernels
  // may have been launched to begin before the end of the one before them (programmatic dependent launch).
  virtual absl::StatusOr<cuda::GraphHandle> EndCapture(cuda::StreamHandle stream) = 0;
  // Returns the work that was captured last on a stream (cudaStreamGetCaptureInfo). Valid as long as the graph.
  virtual absl::StatusOr<cuda::NodeHandle> LastCaptured(cuda::StreamHandle stream) = 0;
  // Changes a captured copy for all later launches (cudaGraphExecMemcpyNodeSetParams1D).
  virtual absl::Status SetGraphCopy(cuda::GraphHandle graph, cuda::NodeHandle copy, void* to, const void* from,
                                    int64_t size_bytes) = 0;
  virtual absl::Status LaunchGraph(cuda::GraphHandle graph, cuda::StreamHandle stream) = 0;  // Only enqueues.
  virtual absl::Status DestroyGraph(cuda::GraphHandle graph) = 0;

  // Returns the last error of this thread's calls or of the device, and clears it if CUDA can.
  virtual absl::Status TakeLastError() = 0;
};

}  // namespace shale
