// CudaGraph: a captured CUDA graph that can be launched.
#pragma once

#include "absl/status/status.h"
#include "kernels/device/cuda/cuda_stream.h"
#include "kernels/device/cuda/runtime.h"
#include "kernels/device/device.h"

namespace shale {

// Owns `graph`. Borrows the runtime.
class CudaGraph : public Graph {
 public:
  CudaGraph(CudaRuntime& runtime, cuda::GraphHandle graph) : runtime_(runtime), graph_(graph) {}
  // Ignores errors: whoever waited for the graph's launches has reported them.
  ~CudaGraph() override { runtime_.DestroyGraph(graph_).IgnoreError(); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  absl::Status Launch(Stream& stream) override {
    absl::StatusOr<CudaStream*> cuda_stream = CudaStream::From(stream);
    if (!cuda_stream.ok()) return cuda_stream.status();
    return (*cuda_stream)->Enqueue([&](cuda::StreamHandle handle) { return runtime_.LaunchGraph(graph_, handle); });
  }
  absl::Status SetCopy(const CapturedCopy& copy, void* to, const void* from) override {
    return copy.size_bytes == 0 ? absl::OkStatus()
                                : runtime_.SetGraphCopy(graph_, copy.node, to, from, copy.size_bytes);
  }

 private:
  CudaRuntime& runtime_;
  const cuda::GraphHandle graph_;
};

}  // namespace shale
