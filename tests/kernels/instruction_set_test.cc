// Tests the limit on instruction sets. BUILD runs it with several values of SHALE_MAX_CPU_ISA, which is read once.
#include "kernels/cpu/instruction_set.h"

#include <cstdlib>
#include <string>

#include "gtest/gtest.h"
#include "hwy/targets.h"
#include "kernels/cpu/bfloat16_instructions.h"

namespace shale::cpu {
namespace {

std::string Limit() {
  const char* value = std::getenv("SHALE_MAX_CPU_ISA");
  return value == nullptr ? "" : value;
}

TEST(InstructionSetTest, AnUnknownLimitIsRefused) {
  const absl::Status status = CheckInstructionSetLimit();
  if (Limit() != "AVX1024") {
    EXPECT_TRUE(status.ok()) << status;
    return;
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "the environment variable SHALE_MAX_CPU_ISA is \"AVX1024\"; allowed: SSE4, AVX2, AVX512, AVX512_BF16, AMX. "
            "Unset it to use all instructions of this processor");
  EXPECT_DEATH(UsedInstructionSet(), "SHALE_MAX_CPU_ISA");
}

TEST(InstructionSetTest, KernelsUseNothingAboveTheLimit) {
  if (!CheckInstructionSetLimit().ok()) GTEST_SKIP() << "no limit";
  const InstructionSet used = UsedInstructionSet();
  EXPECT_EQ(MayUseAmx(), used == InstructionSet::kAmx);
  EXPECT_EQ(MayUseBFloat16Instructions(), used >= InstructionSet::kAvx512BFloat16);
  EXPECT_EQ((hwy::SupportedTargets() & HWY_AVX3) != 0, used >= InstructionSet::kAvx512);
  EXPECT_EQ((hwy::SupportedTargets() & HWY_AVX2) != 0, used >= InstructionSet::kAvx2);
  if (Limit() == "SSE4") {
    EXPECT_EQ(used, InstructionSet::kSse4);
  }
  if (Limit() == "AVX2") {
    EXPECT_LE(used, InstructionSet::kAvx2);
  }
  if (Limit() == "AVX512") {
    EXPECT_LE(used, InstructionSet::kAvx512);
  }
  if (Limit() == "AVX512_BF16") {
    EXPECT_LE(used, InstructionSet::kAvx512BFloat16);
  }
  EXPECT_EQ(InstructionSetLimit().has_value(), !Limit().empty());
  if (InstructionSetLimit().has_value()) {
    EXPECT_EQ(ToString(*InstructionSetLimit()), Limit());
  }
}

}  // namespace
}  // namespace shale::cpu
