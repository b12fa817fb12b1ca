#include "kernels/cpu/bfloat16_instructions.h"

#include <atomic>

namespace shale::cpu {
namespace {

// Atomic, because launches on several threads read it at the same time.
std::atomic<InstructionSet> highest_allowed = InstructionSet::kAmx;

bool MayUse(InstructionSet set) {
  static const InstructionSet used = UsedInstructionSet();
  return used >= set && highest_allowed.load(std::memory_order_relaxed) >= set;
}

}  // namespace

bool MayUseBFloat16Instructions() { return MayUse(InstructionSet::kAvx512BFloat16); }
bool MayUseAmx() { return MayUse(InstructionSet::kAmx); }

void ForbidInstructionsAbove(InstructionSet highest) { highest_allowed.store(highest, std::memory_order_relaxed); }

}  // namespace shale::cpu
