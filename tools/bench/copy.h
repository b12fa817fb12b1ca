// Copies memory with all threads at once. Benches compare what they measure with this.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shale {

// The stores that a copy uses.
enum class CopyKind : uint8_t {
  kPlain,        // Ordinary stores, which read a line before they write it.
  kNonTemporal,  // Stores that go past the caches.
};
// Copies with a team of `threads` OpenMP threads, which the calling thread leads. Each copies one part.
// REQUIRES: addresses and size are multiples of 64 bytes.
void CopyMemory(CopyKind kind, std::byte* to, const std::byte* from, int64_t size_bytes, int threads);

}  // namespace shale
