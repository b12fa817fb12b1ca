#include "kernels/cpu/instruction_set.h"

#include <cstdlib>
#include <optional>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "hwy/targets.h"
#include "kernels/check.h"

namespace shale::cpu {
namespace {

constexpr char kVariable[] = "SHALE_MAX_CPU_ISA";
constexpr InstructionSet kAll[] = {InstructionSet::kSse4, InstructionSet::kAvx2, InstructionSet::kAvx512,
                                   InstructionSet::kAvx512BFloat16, InstructionSet::kAmx};

absl::StatusOr<std::optional<InstructionSet>> Limit() {
  static const char* const value = std::getenv(kVariable);
  if (value == nullptr) return std::nullopt;
  for (const InstructionSet set : kAll) {
    if (value == ToString(set)) return set;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the environment variable ", kVariable, " is \"", value,
      "\"; allowed: SSE4, AVX2, AVX512, AVX512_BF16, AMX. Unset it to use all instructions of this processor"));
}

#if defined(__x86_64__)
// Returns whether the processor has tile registers and multiplies bf16 with them. Reads leaf 7 of cpuid, because clang
// 14 does not know the names of these features in __builtin_cpu_supports.
bool HasTiles() {
  constexpr unsigned int kTiles = 1u << 24, kBFloat16 = 1u << 22;
  unsigned int eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & kTiles) != 0 && (edx & kBFloat16) != 0;
}

// Asks the Linux kernel for the permission to use the tile registers.
bool TilesArePermitted() {
#if defined(__linux__)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM and the feature, in <asm/prctl.h>.
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
#endif

// Returns the best instruction set up to `limit`.
InstructionSet OfProcessor(InstructionSet limit) {
#if defined(__x86_64__)
  const int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;  // HWY_TARGETS: those that kernels are compiled for.
  if ((targets & HWY_AVX3) != 0 && limit >= InstructionSet::kAvx512) {
    // Highway 1.0.3 does not check whether the processor has these.
    if (!__builtin_cpu_supports("avx512bf16") || limit < InstructionSet::kAvx512BFloat16) {
      return InstructionSet::kAvx512;
    }
    if (!HasTiles() || limit < InstructionSet::kAmx) return InstructionSet::kAvx512BFloat16;
    return TilesArePermitted() ? InstructionSet::kAmx : InstructionSet::kAvx512BFloat16;
  }
  if ((targets & HWY_AVX2) != 0 && limit >= InstructionSet::kAvx2) return InstructionSet::kAvx2;
#endif
  return InstructionSet::kSse4;
}

InstructionSet LimitAndDetect() {
  const InstructionSet used = OfProcessor(InstructionSetLimit().value_or(InstructionSet::kAmx));
#if defined(__x86_64__)
  if (used < InstructionSet::kAvx512) hwy::DisableTargets(HWY_AVX3 | HWY_AVX3_DL);
  if (used < InstructionSet::kAvx2) hwy::DisableTargets(HWY_AVX2 | HWY_AVX3 | HWY_AVX3_DL);
#endif
  return used;
}

}  // namespace

absl::string_view ToString(InstructionSet set) {
  switch (set) {
    case InstructionSet::kSse4: return "SSE4";
    case InstructionSet::kAvx2: return "AVX2";
    case InstructionSet::kAvx512: return "AVX512";
    case InstructionSet::kAvx512BFloat16: return "AVX512_BF16";
    case InstructionSet::kAmx: return "AMX";
  }
  return "";
}

absl::Status CheckInstructionSetLimit() { return Limit().status(); }

std::optional<InstructionSet> InstructionSetLimit() {
  const absl::StatusOr<std::optional<InstructionSet>> limit = Limit();
  SHALE_CHECK(limit.ok()) << limit.status().message();
  return *limit;
}

InstructionSet ProcessorInstructionSet() { return OfProcessor(InstructionSet::kAmx); }

InstructionSet UsedInstructionSet() {
  static const InstructionSet used = LimitAndDetect();
  return used;
}

}  // namespace shale::cpu
