#include "kernels/cpu/bfloat16_instructions.h"

#include <atomic>

namespace shale::cpu {
namespace {

// Atomic, because launches on several threads read it at the same time.
std::atomic<bool> instructions_forbidden = false;

}  // namespace

bool MayUseBFloat16Instructions() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("avx512bf16") != 0;
  return has && !instructions_forbidden.load(std::memory_order_relaxed);
#else
  return false;
#endif
}

void ForbidBFloat16Instructions(bool forbidden) { instructions_forbidden.store(forbidden, std::memory_order_relaxed); }

}  // namespace shale::cpu
