// The memory of the stand-in runtime.
//
// Device memory is mapped twice. The mapping at its device address is inaccessible, so that host code that dereferences
// a device pointer crashes as it would with a GPU. Copies and kernels use the other mapping (HostViewOf). Freed
// addresses stay reserved to the end of the process, so that a stale pointer crashes as well. Pinned memory is ordinary
// memory that the runtime knows as pinned.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace shale::cuda_on_host {

enum class MemoryKind : uint8_t { kDevice, kPinned };

// One allocation. Never deleted, so that enqueued work may refer to it by a plain pointer. [Note: happens-before of
// streams] in kernels/device/cpu/ignore_sync.h says why work must not use a shared_ptr.
struct Allocation {
  const void* owner = nullptr;  // The runtime that allocated it.
  int ordinal = 0;              // The device; for pinned memory, the device that was current.
  MemoryKind kind = MemoryKind::kDevice;
  std::byte* address = nullptr;
  std::byte* view = nullptr;  // Where the host accesses it. Equals `address` for pinned memory.
  int64_t size_bytes = 0;
  std::atomic<int> uses = 0;    // Pieces of enqueued work that have not finished. Orders nothing.
  std::atomic<int> graphs = 0;  // Pieces of work of graphs that have not been destroyed. Orders nothing.

  const std::byte* end() const { return address + size_bytes; }
};

// Maps memory. Its address is a multiple of 256 and, like CUDA's, not always of more. Returns ResourceExhausted when
// the machine has no more memory. The registry keeps the Allocation; UnmapMemory gives back its pages.
absl::StatusOr<Allocation*> MapMemory(const void* owner, int ordinal, MemoryKind kind, int64_t size_bytes);
void UnmapMemory(Allocation& allocation);

// Returns the live allocation, of any runtime, that contains `address`, or null.
Allocation* AllocationAt(const void* address);
// Returns whether live device memory overlaps [address, address + size_bytes).
bool TouchesDeviceMemory(const void* address, int64_t size_bytes);

// Returns the allocations that HostViewOf found on this thread since the last call, each once.
std::vector<Allocation*> TakeOperands();

}  // namespace shale::cuda_on_host
