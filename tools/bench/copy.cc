#include "tools/bench/copy.h"

#include "kernels/device/cpu/copy_bytes.h"

namespace shale {
namespace {

using Chunk = long long __attribute__((vector_size(16)));

// Copies lines of 64 bytes with ordinary stores. The empty assembly keeps the compiler from turning the loop into a
// memcpy, which chooses its own kind of store.
void CopyPlainly(std::byte* to, const std::byte* from, int64_t lines) {
  const auto* source = reinterpret_cast<const Chunk*>(from);
  auto* target = reinterpret_cast<Chunk*>(to);
  for (int64_t i = 0; i < 4 * lines; i += 4) {
    for (int64_t j = i; j < i + 4; ++j) target[j] = source[j];
    asm volatile("" : : : "memory");
  }
}

}  // namespace

void CopyMemory(CopyKind kind, std::byte* to, const std::byte* from, int64_t size_bytes, int threads) {
  constexpr int64_t kLine = 64;
  const int64_t lines = size_bytes / kLine;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int part = 0; part < threads; ++part) {
    const int64_t begin = lines * part / threads * kLine, count = lines * (part + 1) / threads - begin / kLine;
    if (kind == CopyKind::kPlain) {
      CopyPlainly(to + begin, from + begin, count);
    } else {
      CopyPastCaches(to + begin, from + begin, count * kLine);
    }
  }
}

}  // namespace shale
