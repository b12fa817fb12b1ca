// Arenas in GPU memory and in pinned host memory.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device/cuda/cuda_device.h"
#include "kernels/device/cuda/runtime.h"
#include "kernels/device/device.h"

namespace shale {

// One allocation in the memory of a GPU.
class CudaArena : public Arena {
 public:
  // Allocates from `source` if it has functions, else with cudaMalloc, and waits until the memory is zero. An
  // allocation from `source` has exactly the size of the arena. REQUIRES: `ordinal` is the calling thread's current
  // device.
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

// One allocation of pinned host memory (cudaHostAlloc).
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
