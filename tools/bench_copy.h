// Copies of memory by all threads at once, which benches hold against what they measure.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shale {

// Copies with `threads` OpenMP threads of the calling one, each a part of its own. REQUIRES: aligned to 64 bytes.
enum class CopyKind : uint8_t {
  kPlain,        // Ordinary stores, which read a line before they write it.
  kNonTemporal,  // Stores that go past the caches.
};
void CopyMemory(CopyKind kind, std::byte* to, const std::byte* from, int64_t size_bytes, int threads);

}  // namespace shale
