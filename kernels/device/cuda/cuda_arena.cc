#include "kernels/device/cuda/cuda_arena.h"

#include <cstddef>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr int64_t kAlignment = 4096;

// Adds slack for kAlignment: CUDA promises an alignment of 256 bytes only.
int64_t WithSlack(int64_t size_bytes) { return size_bytes + kAlignment; }

std::byte* Aligned(void* allocation) {
  const auto misfit = static_cast<int64_t>(reinterpret_cast<uintptr_t>(allocation) % kAlignment);
  return static_cast<std::byte*>(allocation) + (misfit == 0 ? 0 : kAlignment - misfit);
}

absl::Status CheckSize(int64_t size_bytes) {
  if (size_bytes >= 0 && size_bytes <= std::numeric_limits<int64_t>::max() - kAlignment) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("an arena of ", size_bytes, " bytes"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaArena>> CudaArena::Create(CudaRuntime& runtime, int ordinal, int64_t size_bytes,
                                                             const CudaMemorySource& source) {
  SHALE_RETURN_IF_ERROR(CheckSize(size_bytes));
  std::unique_ptr<CudaArena> arena(new CudaArena(runtime, ordinal, source));
  absl::StatusOr<void*> allocation =
      source.allocate ? source.allocate(size_bytes) : runtime.Malloc(WithSlack(size_bytes));
  if (!allocation.ok()) {
    std::string found;
    const absl::StatusOr<CudaDeviceProperties> device = runtime.Properties(ordinal);
    const absl::StatusOr<int64_t> free_bytes = runtime.FreeBytes();
    if (device.ok() && free_bytes.ok()) {
      found = absl::StrCat("; GPU ", ordinal, " (", device->name, ") has ", *free_bytes, " bytes free of ",
                           device->total_bytes);
    }
    return absl::Status(allocation.status().code(),
                        absl::StrCat("an arena of ", size_bytes, " bytes: ", allocation.status().message(), found));
  }
  arena->allocation_ = *allocation;
  arena->base_ = Aligned(*allocation);
  if (source.allocate && arena->base_ != *allocation) {
    return absl::InternalError("the memory source of the arena returned an address that is not a multiple of 4096");
  }
  arena->size_bytes_ = size_bytes;
  SHALE_RETURN_IF_ERROR(arena->Zero());
  return arena;
}

absl::Status CudaArena::Zero() {
  SHALE_ASSIGN_OR_RETURN(cuda::StreamHandle stream, runtime_.CreateStream(CudaStreamPriority::kNormal));
  absl::Status status = runtime_.SetBytesAsync(base_, 0, size_bytes_, stream);
  if (status.ok()) status = runtime_.SynchronizeStream(stream);
  const absl::Status destroyed = runtime_.DestroyStream(stream);
  return status.ok() ? destroyed : status;
}

// Ignores errors: whoever waited for the work has reported them.
CudaArena::~CudaArena() {
  if (allocation_ == nullptr) return;
  runtime_.SetDevice(ordinal_).IgnoreError();
  if (source_.free) {
    runtime_.SynchronizeDevice().IgnoreError();  // cudaFree does the same.
    source_.free(allocation_).IgnoreError();
  } else {
    runtime_.Free(allocation_).IgnoreError();
  }
}

absl::StatusOr<std::unique_ptr<PinnedArena>> PinnedArena::Create(CudaRuntime& runtime, int64_t size_bytes) {
  SHALE_RETURN_IF_ERROR(CheckSize(size_bytes));
  std::unique_ptr<PinnedArena> arena(new PinnedArena(runtime));
  absl::StatusOr<void*> allocation = runtime.MallocHost(WithSlack(size_bytes));
  if (!allocation.ok()) {
    return absl::Status(allocation.status().code(),
                        absl::StrCat("a pinned arena of ", size_bytes, " bytes: ", allocation.status().message()));
  }
  arena->allocation_ = *allocation;
  arena->base_ = Aligned(*allocation);
  arena->size_bytes_ = size_bytes;
  std::memset(arena->base_, 0, size_bytes);
  return arena;
}

PinnedArena::~PinnedArena() {
  if (allocation_ != nullptr) runtime_.FreeHost(allocation_).IgnoreError();
}

}  // namespace shale
