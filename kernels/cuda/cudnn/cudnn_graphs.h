// Attention graphs by cuDNN itself, through NVIDIA's header-only frontend. The libraries (cuDNN, and NVRTC, with which
// it compiles kernels) are loaded at run time and never linked.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/cudnn/attention_graph.h"
#include "kernels/device/cuda/shared_library.h"

namespace shale::cuda {

// Ok, or, where the build had no headers of cuDNN or its frontend, which it lacked: attention is for our kernels then.
absl::Status BuiltWithCudnn();

struct CudnnOptions {
  LibrarySearch search;
  // Of the GPU: CudaDeviceProperties.
  int compute_major = 0, compute_minor = 0;
  // Not empty: a GPU as cuDNN describes it, in JSON. Graphs are built for that one, without any, and cannot run.
  std::string device_json;
};

class CudnnGraphs : public AttentionGraphs {
 public:
  // Whether there is a kernel that needs at most `workspace_bytes`; compiles none.
  virtual absl::Status Supports(const AttentionKey& key, int64_t workspace_bytes) = 0;
  virtual std::string version() const = 0;  // "9.19.0"
};

// For the calling thread's device. The first library that is found serves the whole process. Wants cuDNN 9.16 or newer
// and compute capability 8.0 or newer. Thread-safe.
absl::StatusOr<std::unique_ptr<CudnnGraphs>> LoadCudnn(const CudnnOptions& options);

}  // namespace shale::cuda
