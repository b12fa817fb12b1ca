#include "kernels/cpu/instruction_set.h"

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "hwy/targets.h"
#include "kernels/check.h"

namespace shale::cpu {
namespace {

constexpr char kVariable[] = "SHALE_MAX_CPU_ISA";
constexpr InstructionSet kAll[] = {InstructionSet::kSse4, InstructionSet::kAvx2, InstructionSet::kAvx512,
                                   InstructionSet::kAvx512BFloat16};

absl::StatusOr<std::optional<InstructionSet>> Limit() {
  static const char* const value = std::getenv(kVariable);
  if (value == nullptr) return std::nullopt;
  for (const InstructionSet set : kAll) {
    if (value == ToString(set)) return set;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the environment variable ", kVariable, " is \"", value,
                   "\"; allowed: SSE4, AVX2, AVX512, AVX512_BF16. Unset it to use all instructions of this processor"));
}

InstructionSet OfProcessor() {
#if defined(__x86_64__)
  const int64_t targets = hwy::SupportedTargets();
  // Highway 1.0.3 does not check whether the processor has AVX512-BF16.
  if ((targets & HWY_AVX3) != 0) {
    return __builtin_cpu_supports("avx512bf16") ? InstructionSet::kAvx512BFloat16 : InstructionSet::kAvx512;
  }
  if ((targets & HWY_AVX2) != 0) return InstructionSet::kAvx2;
#endif
  return InstructionSet::kSse4;
}

InstructionSet LimitAndDetect() {
  const InstructionSet used = std::min(OfProcessor(), InstructionSetLimit().value_or(InstructionSet::kAvx512BFloat16));
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
  }
  return "";
}

absl::Status CheckInstructionSetLimit() { return Limit().status(); }

std::optional<InstructionSet> InstructionSetLimit() {
  const absl::StatusOr<std::optional<InstructionSet>> limit = Limit();
  SHALE_CHECK(limit.ok()) << limit.status().message();
  return *limit;
}

InstructionSet UsedInstructionSet() {
  static const InstructionSet used = LimitAndDetect();
  return used;
}

}  // namespace shale::cpu
