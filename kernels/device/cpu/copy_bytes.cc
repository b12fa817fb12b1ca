#include "kernels/device/cpu/copy_bytes.h"

#include <algorithm>
#include <cstring>

#if defined(__SSE2__) && !defined(SHALE_ADDRESS_SANITIZER) && !defined(__SANITIZE_THREAD__)
#define SHALE_HAS_STREAMING_STORES 1
#include <emmintrin.h>
#endif

namespace shale {

#ifdef SHALE_HAS_STREAMING_STORES

void CopyPastCaches(std::byte* to, const std::byte* from, int64_t size_bytes) {
  constexpr int64_t kLine = 64, kChunk = sizeof(__m128i);
  // The streaming stores write whole cache lines.
  const auto misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) % kLine);
  const int64_t head = std::min(size_bytes, (kLine - misaligned) % kLine);
  std::memcpy(to, from, head);
  int64_t at = head;
  for (; at + kLine <= size_bytes; at += kLine) {
    for (int64_t i = at; i < at + kLine; i += kChunk) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
    }
  }
  std::memcpy(to + at, from + at, size_bytes - at);
  _mm_sfence();  // Makes the bytes visible before another thread learns of them.
}

#else

void CopyPastCaches(std::byte* to, const std::byte* from, int64_t size_bytes) { std::memcpy(to, from, size_bytes); }

#endif

void CopyBytes(std::byte* to, const std::byte* from, int64_t size_bytes) {
  if (size_bytes >= kLargeCopyBytes) return CopyPastCaches(to, from, size_bytes);
  std::memcpy(to, from, size_bytes);
}

}  // namespace shale
