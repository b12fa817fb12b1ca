// Arenas on a GPU's host and on the GPU itself.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device/cuda/cuda_device.h"
#include "kernels/device/cuda/runtime.h"
#include "kernels/device/device.h"

namespace shale {

// One allocation on the calling thread's current device, `ordinal`.
class CudaArena : public Arena {
 public:
  // Waits until the memory is zero. From `source` if it has functions: then all of the allocation is the arena; else by
  // cudaMalloc.
  static absl::StatusOr<std::unique_ptr<CudaArena>> Create(CudaRuntime& runtime, int ordinal, int64_t size_bytes,
                                                           const CudaMemorySource& source = {});
  ~CudaArena() override;

 private:
  CudaArena(CudaRuntime& runtime, int ordinal, const CudaMemorySource& source)
      : runtime_(runtime), ordinal_(ordinal), source_(source) {}
  absl::Status Zero();

  CudaRuntime& runtime_;
  const int ordinal_;
  const CudaMemorySource source_;
  void* allocation_ = nullptr;
};

// One cudaHostAlloc.
class PinnedArena : public Arena {
 public:
  static absl::StatusOr<std::unique_ptr<PinnedArena>> Create(CudaRuntime& runtime, int64_t size_bytes);
  ~PinnedArena() override;

 private:
  explicit PinnedArena(CudaRuntime& runtime) : runtime_(runtime) {}

  CudaRuntime& runtime_;
  void* allocation_ = nullptr;
};

}  // namespace shale
