#include "engine/run/verify/small_job.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/integers.h"
#include "kernels/ops/matmul.h"

namespace shale {
namespace {

constexpr int64_t kMostRanks = 4;  // Divide it into two groups of two, and there is a mesh of both axes.
constexpr int64_t kShortestLength = 16;

// Returns whether a small job of this size cannot multiply in fp8 as the job does, because matmuls sum over the rows of
// its micro-batches.
bool LosesFloat8(const Job& job, const SmallSize& size) {
  const int64_t rows = size.micro_batch * (LastTargetOnly(job.model) ? 1 : size.sequence_length);
  return job.precision.matmuls == MatMulPrecision::kFloat8 && rows % kFloat8Multiple != 0;
}

}  // namespace

SmallSize FirstSize(const Job& job) {
  return {.ranks = std::min(job.sharding.ranks, kMostRanks),
          .micro_batch = job.batch.micro_batch,
          .sequence_length = job.batch.sequence_length};
}

bool Shrink(bool length_may_change, SmallSize& size) {
  if (size.micro_batch > 1) {
    size.micro_batch = (size.micro_batch + 1) / 2;
    return true;
  }
  if (!length_may_change || size.sequence_length <= kShortestLength) return false;
  size.sequence_length = std::max(kShortestLength, size.sequence_length / 2);
  return true;
}

SmallSize SmallestSize(bool length_may_change, SmallSize size) {
  while (Shrink(length_may_change, size)) {
  }
  return size;
}

std::vector<std::string> WhatIsSmaller(const Job& job, const SmallSize& size) {
  std::vector<std::string> lines;
  const struct {
    const char* field;
    int64_t of_job, of_small;
  } numbers[] = {{"sharding.ranks", job.sharding.ranks, size.ranks},
                 {"batch.micro_batch", job.batch.micro_batch, size.micro_batch},
                 {"batch.sequence_length", job.batch.sequence_length, size.sequence_length}};
  for (const auto& [field, of_job, of_small] : numbers) {
    if (of_job != of_small) lines.push_back(absl::StrCat(field, " is ", of_small, " instead of ", of_job));
  }
  if (LosesFloat8(job, size)) lines.push_back("precision.matmuls is AS_COMPUTED instead of FP8");
  return lines;
}

Job SmallJob(const Job& job, const SmallSize& size) {
  Job small = job;
  small.name = "verify";
  // Recorded samples are padded already.
  small.data = {.order = DataOrder::kSequential,
                .target_weights = job.data.target_weights,
                .packing = job.data.packing == Packing::kPack ? Packing::kPack : Packing::kCut};
  small.batch = {
      .global_batch = size.global_batch(), .micro_batch = size.micro_batch, .sequence_length = size.sequence_length};
  small.sharding.ranks = size.ranks;
  if (job.sharding.shard_ranks > 0 && job.sharding.ranks != size.ranks) {
    small.sharding.shard_ranks = job.sharding.shard_ranks == job.sharding.ranks ? 0 : size.ranks / 2;
  }
  // The first steps of a warm-up, at which a run of any learning rate begins well.
  constexpr int64_t kSteps = 10;
  if (LosesFloat8(job, size)) {
    small.precision.matmuls = MatMulPrecision::kAsComputed;
    small.precision.fp8_gradients = Float8Gradients::kE5M2;
    small.precision.fp8_scaling = Float8Scaling::kTensorwise;
  }
  small.lr_schedule = {.shape = LearningRateShape::kConstant, .steps = kSteps, .warmup_steps = kSteps};
  small.checkpoint.every_steps = std::min<int64_t>(job.checkpoint.every_steps, kSteps);
  small.checkpoint.keep_best = false;  // There are no evaluations.
  small.checkpoint.patience = 0;
  small.telemetry = {};
  return small;
}

Job ComparedJob(const Job& job, const SmallSize& size) {
  Job compared = SmallJob(job, size);
  compared.activation_checkpointing = {};
  compared.memory.keep_gradients = true;
  // A first step that overflows has no gradients to compare.
  constexpr double kMostScale = 1024;
  if (compared.precision.compute == ComputePrecision::kFloat16) {
    compared.precision.init_scale = std::min(compared.precision.init_scale, kMostScale);
  }
  return compared;
}

void SetDivision(int64_t ranks, int64_t micro_batch, Job& job) {
  job.sharding.ranks = ranks;
  job.sharding.shard_ranks = 0;
  job.batch.micro_batch = micro_batch;
  if (ranks > 1) job.runtime.graphs.reset();
  if (ranks == 1) job.runtime.nccl_windows = job.runtime.nccl_shares_gpus = false;
}

Job GradientJob(const Job& job, const SmallSize& size) {
  constexpr int64_t kPositions = 128;
  Job checked = ComparedJob(job, size);
  const int64_t of_ranks = size.ranks * size.sequence_length;
  checked.batch.micro_batch = std::max(std::min<int64_t>(size.micro_batch, 2), CeilDivide(kPositions, of_ranks));
  checked.batch.global_batch = checked.batch.micro_batch * size.ranks;
  checked.precision = {};
  checked.memory.offload_state = {};
  // A learning rate that is lost in the rounding of every weight.
  checked.optimizer = {.kind = OptimizerKind::kSgd,
                       .learning_rate = 1e-30,
                       .weight_decay = 0,
                       .train_only = job.optimizer.train_only,
                       .frozen_weights = job.optimizer.frozen_weights};
  return checked;
}

}  // namespace shale
