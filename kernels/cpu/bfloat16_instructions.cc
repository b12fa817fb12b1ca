#include "kernels/cpu/bfloat16_instructions.h"

#include <atomic>

#include "kernels/cpu/instruction_set.h"

namespace shale::cpu {
namespace {

// Atomic, because launches on several threads read it at the same time.
std::atomic<bool> instructions_forbidden = false;

}  // namespace

bool MayUseBFloat16Instructions() {
  static const bool has = UsedInstructionSet() >= InstructionSet::kAvx512BFloat16;
  return has && !instructions_forbidden.load(std::memory_order_relaxed);
}

void ForbidBFloat16Instructions(bool forbidden) { instructions_forbidden.store(forbidden, std::memory_order_relaxed); }

}  // namespace shale::cpu
