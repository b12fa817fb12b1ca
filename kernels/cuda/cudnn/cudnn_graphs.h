// CudnnGraphs: builds attention graphs with cuDNN, through NVIDIA's header-only frontend. cuDNN, and NVRTC, with which
// cuDNN compiles kernels, are loaded at run time and never linked.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/cudnn/attention_graph.h"
#include "kernels/device/cuda/shared_library.h"

namespace shale::cuda {

// Returns OK if this program was built with the headers of cuDNN and its frontend. Otherwise returns Unimplemented and
// says what the build needs; our own kernels then compute attention.
absl::Status BuiltWithCudnn();

struct CudnnOptions {
  LibrarySearch search;
  // The compute capability of the GPU, as in CudaDeviceProperties.
  int compute_major = 0, compute_minor = 0;
  // If not empty, cuDNN's description of a GPU, in JSON. Graphs are then built for that GPU, which need not be present,
  // and cannot run.
  std::string device_json;
};

class CudnnGraphs : public AttentionGraphs {
 public:
  // Returns OK if there is a kernel that needs at most `workspace_bytes`. Compiles nothing.
  virtual absl::Status Supports(const AttentionKey& key, int64_t workspace_bytes) = 0;
  virtual std::string version() const = 0;  // "9.19.0"
};

// Loads cuDNN for the calling thread's current device. The first library that is found serves the whole process,
// whatever later calls search for. Requires cuDNN 9.16 or newer and compute capability 8.0 or newer. Thread-safe.
absl::StatusOr<std::unique_ptr<CudnnGraphs>> LoadCudnn(const CudnnOptions& options);

}  // namespace shale::cuda
