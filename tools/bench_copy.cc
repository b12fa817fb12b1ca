#include "tools/bench_copy.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace shale {
namespace {

using Chunk = long long __attribute__((vector_size(16)));

// Whole lines of 64 bytes. The empty assembly keeps the compiler from making a memcpy of it, which chooses by itself
// how it stores. Processors without non-temporal stores of 16 bytes copy plainly.
template <CopyKind kKind>
void CopyLines(std::byte* to, const std::byte* from, int64_t lines) {
  const auto* source = reinterpret_cast<const Chunk*>(from);
  auto* target = reinterpret_cast<Chunk*>(to);
  for (int64_t i = 0; i < 4 * lines; i += 4) {
    for (int64_t j = i; j < i + 4; ++j) {
#ifdef __SSE2__
      if constexpr (kKind == CopyKind::kNonTemporal) {
        _mm_stream_si128(reinterpret_cast<__m128i*>(target + j), reinterpret_cast<__m128i>(source[j]));
        continue;
      }
#endif
      target[j] = source[j];
    }
    asm volatile("" : : : "memory");
  }
#ifdef __SSE2__
  if constexpr (kKind == CopyKind::kNonTemporal) _mm_sfence();
#endif
}

}  // namespace

void CopyMemory(CopyKind kind, std::byte* to, const std::byte* from, int64_t size_bytes, int threads) {
  constexpr int64_t kLine = 64;
  const int64_t lines = size_bytes / kLine;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int part = 0; part < threads; ++part) {
    const int64_t begin = lines * part / threads * kLine, count = lines * (part + 1) / threads - begin / kLine;
    if (kind == CopyKind::kPlain) {
      CopyLines<CopyKind::kPlain>(to + begin, from + begin, count);
    } else {
      CopyLines<CopyKind::kNonTemporal>(to + begin, from + begin, count);
    }
  }
}

}  // namespace shale
