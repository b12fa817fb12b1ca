#include "tests/kernels/cuda/host/stand_in_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/integers.h"
#include "tests/kernels/cuda/host/host_view.h"

namespace shale::cuda_on_host {
namespace {

constexpr int64_t kMisalignment = 256;

// All allocations of the process. There is one registry, since a kernel's argument is just an address.
struct Registry {
  std::shared_mutex mutex;
  std::map<uintptr_t, Allocation*> live;  // Keyed by address.
  std::deque<Allocation> all;
};

Registry& TheRegistry() {
  static Registry* registry = new Registry;
  return *registry;
}

thread_local std::vector<Allocation*> operands;

int64_t MappedBytes(int64_t size_bytes) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  return RoundUp(size_bytes + kMisalignment, page);
}

// Returns the last live allocation that begins at or before `address`, or null. REQUIRES: the registry is locked.
Allocation* Before(const Registry& registry, uintptr_t address) {
  auto after = registry.live.upper_bound(address);
  return after == registry.live.begin() ? nullptr : std::prev(after)->second;
}

absl::Status Refused(int64_t size_bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot map ", size_bytes, " bytes of memory: ", std::strerror(errno)));
}

// Maps new pages at two addresses: inaccessible at `hidden`, readable and writable at `view`.
absl::Status MapTwice(int64_t bytes, void*& hidden, void*& view) {
  const int file = memfd_create("device memory", MFD_CLOEXEC);
  if (file < 0) return Refused(bytes);
  hidden = view = MAP_FAILED;
  if (ftruncate(file, bytes) == 0) {
    hidden = mmap(nullptr, bytes, PROT_NONE, MAP_SHARED, file, 0);
    view = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  const absl::Status status = hidden == MAP_FAILED || view == MAP_FAILED ? Refused(bytes) : absl::OkStatus();
  close(file);
  if (!status.ok() && hidden != MAP_FAILED) munmap(hidden, bytes);
  if (!status.ok() && view != MAP_FAILED) munmap(view, bytes);
  return status;
}

// Gives the pages back to the system and keeps the addresses reserved.
void Reserve(void* address, int64_t bytes) {
  mmap(address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

}  // namespace

absl::StatusOr<Allocation*> MapMemory(const void* owner, int ordinal, MemoryKind kind, int64_t size_bytes) {
  const int64_t bytes = MappedBytes(size_bytes);
  void *address = nullptr, *view = nullptr;
  if (kind == MemoryKind::kDevice) {
    if (absl::Status status = MapTwice(bytes, address, view); !status.ok()) return status;
  } else {
    address = view = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) return Refused(size_bytes);
  }
  Registry& registry = TheRegistry();
  std::lock_guard lock(registry.mutex);
  Allocation& made = registry.all.emplace_back();
  made.owner = owner;
  made.ordinal = ordinal;
  made.kind = kind;
  made.address = static_cast<std::byte*>(address) + kMisalignment;
  made.view = static_cast<std::byte*>(view) + kMisalignment;
  made.size_bytes = size_bytes;
  registry.live[reinterpret_cast<uintptr_t>(made.address)] = &made;
  return &made;
}

void UnmapMemory(Allocation& allocation) {
  Registry& registry = TheRegistry();
  std::lock_guard lock(registry.mutex);
  registry.live.erase(reinterpret_cast<uintptr_t>(allocation.address));
  const int64_t bytes = MappedBytes(allocation.size_bytes);
  Reserve(allocation.address - kMisalignment, bytes);
  if (allocation.view != allocation.address) Reserve(allocation.view - kMisalignment, bytes);
}

Allocation* AllocationAt(const void* address) {
  Registry& registry = TheRegistry();
  std::shared_lock lock(registry.mutex);
  Allocation* found = Before(registry, reinterpret_cast<uintptr_t>(address));
  return found != nullptr && address < found->end() ? found : nullptr;
}

bool TouchesDeviceMemory(const void* address, int64_t size_bytes) {
  Registry& registry = TheRegistry();
  std::shared_lock lock(registry.mutex);
  // Allocations do not overlap, so of those that begin before the range's end, the last one ends last.
  for (auto at = registry.live.lower_bound(reinterpret_cast<uintptr_t>(address) + size_bytes);
       at != registry.live.begin();) {
    const Allocation& found = *(--at)->second;
    if (found.end() <= address) return false;
    if (found.kind == MemoryKind::kDevice) return true;
  }
  return false;
}

std::vector<Allocation*> TakeOperands() { return std::exchange(operands, {}); }

const void* HostViewOf(const void* device_pointer) {
  Allocation* found = AllocationAt(device_pointer);
  if (found == nullptr) return device_pointer;
  if (std::find(operands.begin(), operands.end(), found) == operands.end()) operands.push_back(found);
  return found->view + (static_cast<const std::byte*>(device_pointer) - found->address);
}

}  // namespace shale::cuda_on_host
