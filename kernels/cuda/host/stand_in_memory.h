// Memory of the stand-in runtime.
//
// Device memory is mapped twice: where its address says, inaccessibly, so that host code which follows a device pointer
// crashes as it would with a GPU; and where copies and kernels find it (HostViewOf). Freed addresses stay reserved to
// the end of the process: a stale pointer crashes as well. Pinned memory is ordinary memory that is known as such.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace shale::cuda_on_host {

enum class MemoryKind : uint8_t { kDevice, kPinned };

// Never deleted, so that enqueued work may refer to it by a plain pointer (see [Note: happens-before of streams] in
// kernels/device/cpu/ignore_sync.h for why not by a shared one).
struct Allocation {
  const void* owner = nullptr;  // The runtime.
  int ordinal = 0;              // Of the device; for pinned memory, of the one that was current.
  MemoryKind kind = MemoryKind::kDevice;
  std::byte* address = nullptr;
  std::byte* view = nullptr;  // For pinned memory the address itself.
  int64_t size_bytes = 0;
  std::atomic<int> uses = 0;    // By enqueued work that has not finished. Orders nothing.
  std::atomic<int> graphs = 0;  // Pieces of work of graphs that have not been destroyed. Orders nothing.

  const std::byte* end() const { return address + size_bytes; }
};

// A multiple of 256 and, as CUDA's are, not always of more. ResourceExhausted when the machine has no more.
absl::StatusOr<Allocation*> MapMemory(const void* owner, int ordinal, MemoryKind kind, int64_t size_bytes);
void UnmapMemory(Allocation& allocation);

// The live allocation that `address` lies in, of any runtime; null: none.
Allocation* AllocationAt(const void* address);
// Whether any live device memory lies in [address, address + size_bytes).
bool TouchesDeviceMemory(const void* address, int64_t size_bytes);

// What HostViewOf found on this thread since the last call, each once.
std::vector<Allocation*> TakeOperands();

}  // namespace shale::cuda_on_host
