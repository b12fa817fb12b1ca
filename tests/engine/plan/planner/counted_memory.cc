#include "tests/engine/plan/planner/counted_memory.h"

#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <new>

namespace {

thread_local int64_t held = 0, most = 0;

void* Counted(void* block) {
  if (block == nullptr) std::abort();
  held += static_cast<int64_t>(malloc_usable_size(block));
  most = std::max(most, held);
  return block;
}

void Free(void* block) {
  if (block != nullptr) held -= static_cast<int64_t>(malloc_usable_size(block));
  std::free(block);
}

}  // namespace

// The forms for arrays call these.
void* operator new(size_t bytes) { return Counted(std::malloc(std::max<size_t>(1, bytes))); }
// The default calls the form above, but AddressSanitizer has another one, whose blocks must not be freed below.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return operator new(bytes); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  const size_t a = static_cast<size_t>(alignment);
  return Counted(std::aligned_alloc(a, (std::max<size_t>(1, bytes) + a - 1) / a * a));
}
void operator delete(void* block) noexcept { Free(block); }
void operator delete(void* block, size_t) noexcept { Free(block); }
void operator delete(void* block, std::align_val_t) noexcept { Free(block); }
void operator delete(void* block, size_t, std::align_val_t) noexcept { Free(block); }

namespace shale {

void CountMemory() { held = most = 0; }
int64_t MostCountedBytes() { return most; }

}  // namespace shale
