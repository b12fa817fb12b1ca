#include "kernels/device/cuda/cudart.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace shale {
namespace {

cudaStream_t AsStream(cuda::StreamHandle stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t AsEvent(cuda::EventHandle event) { return static_cast<cudaEvent_t>(event); }

// A captured graph and its executable form. The graph is kept because SetGraphCopy names its nodes.
struct CapturedGraph {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t launchable = nullptr;
};
CapturedGraph& AsGraph(cuda::GraphHandle graph) { return *static_cast<CapturedGraph*>(graph); }

std::string Version(int version) { return absl::StrCat(version / 1000, ".", version % 1000 / 10); }

// Returns which driver was found and what to do, as the end of an error message.
std::string AboutTheDriver() {
  int driver = 0;
  (void)cudaDriverGetVersion(&driver);
  std::string found =
      driver == 0 ? std::string("no driver (libcuda.so.1)") : absl::StrCat("a driver for CUDA ", Version(driver));
  return absl::StrCat("; wanted an NVIDIA GPU and a driver for CUDA ", Version(CUDART_VERSION), " or newer, found ",
                      found, ". Check that nvidia-smi lists a GPU (in a container: that it was started with --gpus), ",
                      "that CUDA_VISIBLE_DEVICES does not hide it, or run on the CPU");
}

absl::StatusCode CodeOf(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation: return absl::StatusCode::kResourceExhausted;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidDevice:
    case cudaErrorInvalidResourceHandle: return absl::StatusCode::kInvalidArgument;
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
    case cudaErrorStubLibrary:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorSystemNotReady:
    case cudaErrorInitializationError:
    case cudaErrorDevicesUnavailable: return absl::StatusCode::kFailedPrecondition;
    default: return absl::StatusCode::kInternal;
  }
}

absl::Status StatusOf(const char* call, cudaError_t error) {
  if (error == cudaSuccess) return absl::OkStatus();
  (void)cudaGetLastError();  // Clears the error, so that a later check does not report it again.
  const absl::StatusCode code = CodeOf(error);
  return absl::Status(code, absl::StrCat(call, ": ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ")",
                                         code == absl::StatusCode::kFailedPrecondition ? AboutTheDriver() : ""));
}

class Cudart final : public CudaRuntime {
 public:
  absl::StatusOr<int> DeviceCount() override {
    int count = 0;
    SHALE_RETURN_IF_ERROR(StatusOf("cudaGetDeviceCount", cudaGetDeviceCount(&count)));
    return count;
  }
  absl::Status SetDevice(int ordinal) override { return StatusOf("cudaSetDevice", cudaSetDevice(ordinal)); }

  absl::StatusOr<CudaDeviceProperties> Properties(int ordinal) override {
    cudaDeviceProp found = {};
    SHALE_RETURN_IF_ERROR(StatusOf("cudaGetDeviceProperties", cudaGetDeviceProperties(&found, ordinal)));
    return CudaDeviceProperties{.name = found.name,
                                .compute_major = found.major,
                                .compute_minor = found.minor,
                                .sm_count = found.multiProcessorCount,
                                .total_bytes = static_cast<int64_t>(found.totalGlobalMem)};
  }

  absl::StatusOr<int64_t> FreeBytes() override {
    size_t free_bytes = 0, total_bytes = 0;
    SHALE_RETURN_IF_ERROR(StatusOf("cudaMemGetInfo", cudaMemGetInfo(&free_bytes, &total_bytes)));
    return static_cast<int64_t>(free_bytes);
  }

  absl::Status SynchronizeDevice() override { return StatusOf("cudaDeviceSynchronize", cudaDeviceSynchronize()); }

  absl::Status EnablePeerAccess(int peer) override {
    const cudaError_t error = cudaDeviceEnablePeerAccess(peer, /*flags=*/0);
    if (error == cudaErrorPeerAccessAlreadyEnabled) {
      (void)cudaGetLastError();
      return absl::OkStatus();
    }
    return StatusOf("cudaDeviceEnablePeerAccess", error);
  }

  absl::StatusOr<void*> Malloc(int64_t size_bytes) override {
    void* memory = nullptr;
    SHALE_RETURN_IF_ERROR(StatusOf("cudaMalloc", cudaMalloc(&memory, size_bytes)));
    return memory;
  }
  absl::Status Free(void* memory) override { return StatusOf("cudaFree", cudaFree(memory)); }
  absl::StatusOr<void*> MallocHost(int64_t size_bytes) override {
    void* memory = nullptr;
    SHALE_RETURN_IF_ERROR(StatusOf("cudaHostAlloc", cudaHostAlloc(&memory, size_bytes, cudaHostAllocPortable)));
    return memory;
  }
  absl::Status FreeHost(void* memory) override { return StatusOf("cudaFreeHost", cudaFreeHost(memory)); }

  absl::StatusOr<cuda::StreamHandle> CreateStream(CudaStreamPriority priority) override {
    int least = 0, greatest = 0;
    SHALE_RETURN_IF_ERROR(
        StatusOf("cudaDeviceGetStreamPriorityRange", cudaDeviceGetStreamPriorityRange(&least, &greatest)));
    cudaStream_t stream = nullptr;
    SHALE_RETURN_IF_ERROR(
        StatusOf("cudaStreamCreateWithPriority",
                 cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                              priority == CudaStreamPriority::kHighest ? greatest : least)));
    return stream;
  }
  absl::Status DestroyStream(cuda::StreamHandle stream) override {
    return StatusOf("cudaStreamDestroy", cudaStreamDestroy(AsStream(stream)));
  }
  absl::Status SynchronizeStream(cuda::StreamHandle stream) override {
    return StatusOf("cudaStreamSynchronize", cudaStreamSynchronize(AsStream(stream)));
  }

  absl::StatusOr<cuda::EventHandle> CreateEvent(CudaEventKind kind) override {
    cudaEvent_t event = nullptr;
    SHALE_RETURN_IF_ERROR(StatusOf(
        "cudaEventCreateWithFlags",
        cudaEventCreateWithFlags(&event, kind == CudaEventKind::kTime ? cudaEventDefault : cudaEventDisableTiming)));
    return event;
  }
  absl::Status DestroyEvent(cuda::EventHandle event) override {
    return StatusOf("cudaEventDestroy", cudaEventDestroy(AsEvent(event)));
  }
  absl::Status RecordEvent(cuda::EventHandle event, cuda::StreamHandle stream) override {
    return StatusOf("cudaEventRecord", cudaEventRecord(AsEvent(event), AsStream(stream)));
  }
  absl::StatusOr<bool> EventReached(cuda::EventHandle event) override {
    const cudaError_t error = cudaEventQuery(AsEvent(event));
    if (error == cudaErrorNotReady) {
      (void)cudaGetLastError();
      return false;
    }
    SHALE_RETURN_IF_ERROR(StatusOf("cudaEventQuery", error));
    return true;
  }
  absl::Status SynchronizeEvent(cuda::EventHandle event) override {
    return StatusOf("cudaEventSynchronize", cudaEventSynchronize(AsEvent(event)));
  }
  absl::StatusOr<double> ElapsedMilliseconds(cuda::EventHandle begin, cuda::EventHandle end) override {
    float milliseconds = 0;
    SHALE_RETURN_IF_ERROR(
        StatusOf("cudaEventElapsedTime", cudaEventElapsedTime(&milliseconds, AsEvent(begin), AsEvent(end))));
    return milliseconds;
  }

  absl::Status WaitEvent(cuda::StreamHandle stream, cuda::EventHandle event) override {
    return StatusOf("cudaStreamWaitEvent", cudaStreamWaitEvent(AsStream(stream), AsEvent(event), /*flags=*/0));
  }
  absl::Status CopyAsync(void* to, const void* from, int64_t size_bytes, cuda::StreamHandle stream) override {
    return StatusOf("cudaMemcpyAsync", cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyDefault, AsStream(stream)));
  }
  absl::Status SetBytesAsync(void* to, uint8_t value, int64_t size_bytes, cuda::StreamHandle stream) override {
    return StatusOf("cudaMemsetAsync", cudaMemsetAsync(to, value, size_bytes, AsStream(stream)));
  }

  // The runtime has no such call. The driver's call is looked up by name, so that the program does not link the driver.
  absl::Status WriteWordAsync(uint32_t* to, uint32_t value, cuda::StreamHandle stream) override {
    using Write = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
    Write write = nullptr;
    {
      std::lock_guard lock(mutex_);
      if (write_word_ == nullptr) {
        cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
        SHALE_RETURN_IF_ERROR(StatusOf(
            "cudaGetDriverEntryPointByVersion",
            cudaGetDriverEntryPointByVersion("cuStreamWriteValue32", &write_word_, 12000, cudaEnableDefault, &found)));
        if (found != cudaDriverEntryPointSuccess || write_word_ == nullptr) {
          write_word_ = nullptr;
          return absl::UnimplementedError(absl::StrCat("the driver has no cuStreamWriteValue32", AboutTheDriver()));
        }
      }
      write = reinterpret_cast<Write>(write_word_);
    }
    const CUresult result = write(AsStream(stream), reinterpret_cast<CUdeviceptr>(to), value, /*flags=*/0);
    if (result == CUDA_SUCCESS) return absl::OkStatus();
    if (result == CUDA_ERROR_NOT_SUPPORTED) {
      return absl::UnimplementedError("the driver does not support cuStreamWriteValue32 on this GPU");
    }
    return absl::InternalError(absl::StrCat("cuStreamWriteValue32: the driver's error ", static_cast<int>(result)));
  }

  absl::Status LaunchHostFunction(void (*function)(void*), void* argument, cuda::StreamHandle stream) override {
    return StatusOf("cudaLaunchHostFunc", cudaLaunchHostFunc(AsStream(stream), function, argument));
  }

  absl::Status BeginCapture(cuda::StreamHandle stream) override {
    return StatusOf("cudaStreamBeginCapture",
                    cudaStreamBeginCapture(AsStream(stream), cudaStreamCaptureModeThreadLocal));
  }
  absl::StatusOr<bool> IsCapturing(cuda::StreamHandle stream) override {
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    SHALE_RETURN_IF_ERROR(StatusOf("cudaStreamIsCapturing", cudaStreamIsCapturing(AsStream(stream), &capturing)));
    return capturing != cudaStreamCaptureStatusNone;
  }
  absl::StatusOr<cuda::GraphHandle> EndCapture(cuda::StreamHandle stream) override {
    auto captured = std::make_unique<CapturedGraph>();
    SHALE_RETURN_IF_ERROR(StatusOf("cudaStreamEndCapture", cudaStreamEndCapture(AsStream(stream), &captured->graph)));
    // A kernel has the priority of the stream on which it was captured. Without this flag CUDA would run it with that
    // of the stream on which the graph is launched.
    absl::Status status =
        StatusOf("cudaGraphInstantiate",
                 cudaGraphInstantiate(&captured->launchable, captured->graph, cudaGraphInstantiateFlagUseNodePriority));
    if (status.ok()) {
      // Otherwise the first launch would take the memory that the graph needs on the device.
      status = StatusOf("cudaGraphUpload", cudaGraphUpload(captured->launchable, AsStream(stream)));
      if (status.ok()) return captured.release();
      StatusOf("cudaGraphExecDestroy", cudaGraphExecDestroy(captured->launchable)).IgnoreError();
    }
    StatusOf("cudaGraphDestroy", cudaGraphDestroy(captured->graph)).IgnoreError();
    return status;
  }
  absl::StatusOr<cuda::NodeHandle> LastCaptured(cuda::StreamHandle stream) override {
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    const cudaGraphNode_t* nodes = nullptr;
    // What the next work waits for may be less than the end of a kernel (programmatic dependent launch, which libraries
    // use). CUDA then gives the nodes only to those who ask for the kinds of the edges too.
    const cudaGraphEdgeData* edges = nullptr;
    size_t count = 0;
    SHALE_RETURN_IF_ERROR(
        StatusOf("cudaStreamGetCaptureInfo", cudaStreamGetCaptureInfo(AsStream(stream), &capturing, /*id_out=*/nullptr,
                                                                      /*graph_out=*/nullptr, &nodes, &edges, &count)));
    if (capturing == cudaStreamCaptureStatusActive && count == 1) return nodes[0];
    return absl::InternalError(
        absl::StrCat("cudaStreamGetCaptureInfo: wanted one node for the work that was captured last, found ", count));
  }
  absl::Status SetGraphCopy(cuda::GraphHandle graph, cuda::NodeHandle copy, void* to, const void* from,
                            int64_t size_bytes) override {
    return StatusOf("cudaGraphExecMemcpyNodeSetParams1D",
                    cudaGraphExecMemcpyNodeSetParams1D(AsGraph(graph).launchable, static_cast<cudaGraphNode_t>(copy),
                                                       to, from, size_bytes, cudaMemcpyDefault));
  }
  absl::Status LaunchGraph(cuda::GraphHandle graph, cuda::StreamHandle stream) override {
    return StatusOf("cudaGraphLaunch", cudaGraphLaunch(AsGraph(graph).launchable, AsStream(stream)));
  }
  absl::Status DestroyGraph(cuda::GraphHandle graph) override {
    const std::unique_ptr<CapturedGraph> captured(&AsGraph(graph));
    absl::Status status = StatusOf("cudaGraphExecDestroy", cudaGraphExecDestroy(captured->launchable));
    status.Update(StatusOf("cudaGraphDestroy", cudaGraphDestroy(captured->graph)));
    return status;
  }

  absl::Status TakeLastError() override { return StatusOf("cudaGetLastError", cudaGetLastError()); }

 private:
  std::mutex mutex_;
  void* write_word_ = nullptr;
};

}  // namespace

void SetCudaEnvironment() {
  setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
  // Streams beyond this number (default 8) share a queue and wait for one another in it.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
}

std::unique_ptr<CudaRuntime> CreateCudart() {
  SetCudaEnvironment();
  return std::make_unique<Cudart>();
}

}  // namespace shale
