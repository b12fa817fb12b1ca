// Packing weights once for all micro-batches changes no bits. Compares LAYERED, which does so, with NO_SYNC.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/ops/matmul.h"
#include "tests/engine/job_harness.h"

namespace shale::testing {
namespace {

int PackedMatMuls(const StepProgram& program) {
  int matmuls = 0;
  for (const Instruction& instruction : program.instructions) {
    const Op* op = std::get_if<Op>(&instruction.action);
    const MatMul* matmul = op == nullptr ? nullptr : op->As<MatMul>();
    matmuls += matmul != nullptr && matmul->packed_b.present();
  }
  return matmuls;
}

// b is packed for matmuls of 512 rows or more. The head's last chunk on one rank has fewer.
TEST(PackedWeightsLaw, TheyChangeNoBits) {
  DecoderConfig model = SmallDecoder();
  model.width = 64;
  model.head_width = 16;
  model.heads = 4;
  model.kv_heads = 2;
  model.hidden = 90;
  model.vocabulary = 131;
  const Tokens tokens = RandomTokens(12, 256, model.vocabulary, 5);
  for (const auto& [dtype, cpu_matmuls] : {std::pair(DType::kFloat32, CpuMatMuls::kOneDnn),
                                           {DType::kBFloat16, CpuMatMuls::kOneDnn},
                                           {DType::kFloat32, CpuMatMuls::kPacked},
                                           {DType::kBFloat16, CpuMatMuls::kPacked}}) {
    for (const auto& [ranks, preset] : {std::pair(1, CheckpointingPreset::kNone), {2, CheckpointingPreset::kBlock}}) {
      const std::string what = absl::StrCat(ranks, " ranks, ", ToString(dtype), ", ", ToString(cpu_matmuls));
      RunOptions options;
      options.model = model;
      options.dtype = dtype;
      options.cpu_matmuls = cpu_matmuls;
      options.micro_batch = 4 / ranks;  // K = 3.
      options.loss_chunk_tokens = ranks == 1 ? 600 : 512;
      options.step.strategy = Strategy::kFullShard;
      options.step.mesh = {.shard = ranks};
      options.step.activations = {.preset = preset,
                                  .segment_blocks = ranks};  // With two ranks, segments of two blocks.
      options.threads = 2;
      options.steps = 2;
      options.step.accumulation = Accumulation::kNoSync;
      const absl::StatusOr<RunResult> often = RunJob(options, tokens);
      options.step.accumulation = Accumulation::kLayered;
      const absl::StatusOr<RunResult> once = RunJob(options, tokens);
      ASSERT_TRUE(often.ok()) << what << ": " << often.status();
      ASSERT_TRUE(once.ok()) << what << ": " << once.status();
      EXPECT_EQ(often->losses, once->losses) << what;
      EXPECT_EQ(often->norms, once->norms) << what;
      EXPECT_TRUE(often->gradients == once->gradients) << what;
      EXPECT_TRUE(often->weights == once->weights) << what;
      EXPECT_FALSE(once->weights.empty());
      EXPECT_EQ(once->measured_peak_bytes, once->plan.peak_bytes) << what;
      EXPECT_EQ(PackedMatMuls(often->step.program), 0) << what;
      const bool onednn_packs =
          dtype == DType::kFloat32 ? __builtin_cpu_supports("avx512f") : __builtin_cpu_supports("avx512bf16");
      if (cpu_matmuls == CpuMatMuls::kPacked || (onednn_packs && std::getenv("SHALE_MAX_CPU_ISA") == nullptr)) {
        EXPECT_GT(PackedMatMuls(once->step.program), 20) << what;
      }
    }
  }
}

}  // namespace
}  // namespace shale::testing
