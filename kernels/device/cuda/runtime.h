// CudaRuntime: the calls of the CUDA runtime that we make, so that everything above them also runs where there is no
// GPU (kernels/cuda/host/stand_in_runtime.h).
//
// A call is CUDA's of the same name, with its meaning. An error names the call and has CUDA's text. Out of memory is
// ResourceExhausted, a wrong argument InvalidArgument, a missing driver or GPU FailedPrecondition with what to do about
// it; all else Internal. What goes wrong on the device is reported by some later call, and by every one after it: only
// the end of the process helps then.
//
// Thread-safe. The current device belongs to the calling thread; streams and events belong to the device that was
// current when they were made, and so does what is launched on them.
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
  int64_t total_bytes = 0;                   // Of memory.
};

enum class CudaStreamPriority : uint8_t { kNormal, kHighest };
enum class CudaEventKind : uint8_t { kOrder, kTime };  // Times cost a little more to record.

class CudaRuntime {
 public:
  virtual ~CudaRuntime() = default;

  virtual absl::StatusOr<int> DeviceCount() = 0;
  virtual absl::Status SetDevice(int ordinal) = 0;  // Of the calling thread.
  // Makes no context on the device, which would take memory there.
  virtual absl::StatusOr<CudaDeviceProperties> Properties(int ordinal) = 0;
  // Of the current device: memory that nobody has now.
  virtual absl::StatusOr<int64_t> FreeBytes() = 0;
  // Waits for all streams of the current device.
  virtual absl::Status SynchronizeDevice() = 0;
  // Lets kernels and copies of the current device reach the memory of `peer`. Once is enough; more often is no error.
  virtual absl::Status EnablePeerAccess(int peer) = 0;

  virtual absl::StatusOr<void*> Malloc(int64_t size_bytes) = 0;
  virtual absl::Status Free(void* memory) = 0;                       // Waits for all work of the device.
  virtual absl::StatusOr<void*> MallocHost(int64_t size_bytes) = 0;  // Pinned.
  virtual absl::Status FreeHost(void* memory) = 0;

  // Streams do not synchronise with the default stream.
  virtual absl::StatusOr<cuda::StreamHandle> CreateStream(CudaStreamPriority priority) = 0;
  virtual absl::Status DestroyStream(cuda::StreamHandle stream) = 0;
  virtual absl::Status SynchronizeStream(cuda::StreamHandle stream) = 0;

  virtual absl::StatusOr<cuda::EventHandle> CreateEvent(CudaEventKind kind) = 0;
  virtual absl::Status DestroyEvent(cuda::EventHandle event) = 0;
  virtual absl::Status RecordEvent(cuda::EventHandle event, cuda::StreamHandle stream) = 0;
  virtual absl::StatusOr<bool> EventReached(cuda::EventHandle event) = 0;  // Does not wait.
  virtual absl::Status SynchronizeEvent(cuda::EventHandle event) = 0;
  // From `begin` to `end`, both of kind kTime and reached.
  virtual absl::StatusOr<double> ElapsedMilliseconds(cuda::EventHandle begin, cuda::EventHandle end) = 0;

  // The following only enqueue.
  virtual absl::Status WaitEvent(cuda::StreamHandle stream, cuda::EventHandle event) = 0;
  // Between any two kinds of memory. Host memory that is not pinned makes the call wait for the stream.
  virtual absl::Status CopyAsync(void* to, const void* from, int64_t size_bytes, cuda::StreamHandle stream) = 0;
  virtual absl::Status SetBytesAsync(void* to, uint8_t value, int64_t size_bytes, cuda::StreamHandle stream) = 0;
  // Writes a word of pinned memory when all before it has finished.
  virtual absl::Status WriteWordAsync(uint32_t* to, uint32_t value, cuda::StreamHandle stream) = 0;
  // Calls function(argument) on a thread of CUDA's, which must not call CUDA. Not called after an error.
  virtual absl::Status LaunchHostFunction(void (*function)(void*), void* argument, cuda::StreamHandle stream) = 0;

  // Graphs. The calling thread alone is restricted by its captures (cudaStreamCaptureModeThreadLocal).
  virtual absl::Status BeginCapture(cuda::StreamHandle stream) = 0;
  // Captured (cudaStreamEndCapture) and ready to be launched (cudaGraphInstantiate).
  virtual absl::StatusOr<cuda::GraphHandle> EndCapture(cuda::StreamHandle stream) = 0;
  // What was captured last on a stream (cudaStreamGetCaptureInfo). Lives as long as the graph.
  virtual absl::StatusOr<cuda::NodeHandle> LastCaptured(cuda::StreamHandle stream) = 0;
  // Of a captured copy (cudaGraphExecMemcpyNodeSetParams1D), for later launches.
  virtual absl::Status SetGraphCopy(cuda::GraphHandle graph, cuda::NodeHandle copy, void* to, const void* from,
                                    int64_t size_bytes) = 0;
  virtual absl::Status LaunchGraph(cuda::GraphHandle graph, cuda::StreamHandle stream) = 0;  // Only enqueues.
  virtual absl::Status DestroyGraph(cuda::GraphHandle graph) = 0;

  // What CUDA holds against this thread's calls or the device, and clears it if that helps.
  virtual absl::Status TakeLastError() = 0;
};

}  // namespace shale
