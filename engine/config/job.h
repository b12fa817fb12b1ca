// A training run as plain values: what a job file says, with every default resolved. proto/job.proto documents the
// fields at length; here each has the value that the run uses. Made by engine/config/parse.h; read everywhere.
//
// Plain copyable values, no owner, no threads. A program that embeds the engine may fill in a Job itself and have it
// checked by ValidateJob (engine/config/parse.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "engine/model/config.h"
#include "engine/runtime/ops_kind.h"
#include "engine/step/options_enums.h"
#include "kernels/integers.h"

namespace shale {

enum class DataFormat { kByContent, kText, kLlmc };
enum class DataOrder { kShuffled, kSequential };

struct DataConfig {
  std::string path;  // A file or a folder; absolute when it came from a job file.
  DataFormat format = DataFormat::kByContent;
  DataOrder order = DataOrder::kShuffled;
  uint64_t seed = 1;               // Of the order.
  std::string evaluation_path;     // Empty: none.
  double evaluation_fraction = 0;  // Of path, held out at its end; 0 when evaluation_path is given.

  bool operator==(const DataConfig&) const = default;
};

struct BatchConfig {
  int64_t global_batch = 0;     // Sequences in one optimizer step, over all ranks.
  int64_t micro_batch = 1;      // Sequences that one rank runs at once.
  int64_t sequence_length = 0;  // Tokens.

  bool operator==(const BatchConfig&) const = default;
};

struct ShardingConfig {
  Strategy strategy = Strategy::kFull;
  Schedule schedule = Schedule::kAuto;
  int64_t ranks = 1;
  int64_t prefetch = 1;               // Units gathered ahead. Only kFull reads it.
  bool reshard_after_forward = true;  // Only kFull reads it.

  bool operator==(const ShardingConfig&) const = default;
};

// Micro-batches that each rank runs in one optimizer step.
inline int64_t AccumulationSteps(const BatchConfig& batch, int64_t ranks) {
  return CeilDivide(batch.global_batch, batch.micro_batch * ranks);
}

enum class ComputePrecision { kFloat32, kBFloat16 };

struct PrecisionConfig {
  ComputePrecision compute = ComputePrecision::kFloat32;
  MasterWeights master = MasterWeights::kFloat32;
  bool allow_tf32 = false;  // Products of fp32 matrices; only kCuda reads it.

  bool operator==(const PrecisionConfig&) const = default;
};

struct MemoryConfig {
  RetentionPreset retention = RetentionPreset::kKeepAll;
  // Blocks that retention applies to: the first a and the last b when a + b > 0, else blocks 0, n, 2n, ...
  int64_t every_nth = 1;
  int64_t first_layers = 0;
  int64_t last_layers = 0;
  std::vector<std::string> recompute;  // Name patterns of tensors to recompute besides; '*' matches any characters.
  std::vector<std::string> offload;    // Likewise, of those that wait for their backward in host memory.
  int64_t host_budget_bytes = 0;       // That one rank may offload; 0: by the machine's memory.
  int64_t budget_bytes = 0;            // That one rank may plan; 0: by the machine's memory.
  int64_t loss_chunk_tokens = 0;       // Tokens whose logits exist at once; 0: by the vocabulary (LossChunkTokens).

  bool operator==(const MemoryConfig&) const = default;
};

enum class NonFinite { kStop, kSkip };
enum class ScalingRule { kConstant, kLinear, kSquareRoot };

struct OptimizerConfig {
  double learning_rate = 3e-4;  // Peak, before the scaling rule.
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;
  std::vector<std::string> no_decay;  // Name patterns of parameters without decay, besides vectors.
  double max_gradient_norm = 1;       // 0: no clipping.
  NonFinite non_finite = NonFinite::kStop;
  ScalingRule scaling = ScalingRule::kConstant;
  int64_t base_batch = 0;  // Sequences; 0 when scaling is kConstant.

  bool operator==(const OptimizerConfig&) const = default;
};

enum class CurveShape { kConstant, kLinear, kCosine, kWarmupStableDecay };

struct LearningRateConfig {
  CurveShape shape = CurveShape::kCosine;
  // Length of the run: one of the two is positive, the other 0.
  int64_t steps = 0;  // Optimizer steps.
  double epochs = 0;  // Passes over the data.
  // Linear warm-up from 0: at most one is positive.
  int64_t warmup_steps = 0;
  int64_t warmup_samples = 0;
  int64_t warmup_tokens = 0;
  double final_fraction = 0.1;  // Of the peak, at the end; kConstant does not read it.
  double decay_fraction = 0.2;  // Share of the run that decays; only kWarmupStableDecay reads it.

  bool operator==(const LearningRateConfig&) const = default;
};

// What follows when a checkpoint cannot be written.
enum class SaveFailure { kStop, kContinue };

struct CheckpointConfig {
  int64_t every_steps = 0;  // 0: only at the end.
  int64_t keep_last = 2;
  int64_t keep_every = 0;    // Steps; 0: none is kept for ever.
  bool asynchronous = true;  // Only every_steps > 0 reads it: what is saved at the end has nothing to wait for.
  SaveFailure on_failure = SaveFailure::kStop;

  bool operator==(const CheckpointConfig&) const = default;
};

struct TelemetryConfig {
  std::string run_folder;
  int64_t print_every = 1;         // Steps.
  int64_t evaluate_every = 0;      // Steps; 0: only at the end.
  int64_t evaluation_batches = 8;  // Micro-batches per rank.
  double peak_flops = 0;           // FLOP/s of one rank; 0: measured at the start.

  bool operator==(const TelemetryConfig&) const = default;
};

enum class DeviceType { kCpu, kCuda };
// kAuto: NCCL where every rank has a GPU of its own.
enum class CollectivesKind { kAuto, kNccl, kInProcess };

struct RuntimeConfig {
  DeviceType device = DeviceType::kCpu;
  OpsKind ops = OpsKind::kFast;
  int64_t threads_per_rank = 0;  // 0: see ThreadsPerRank.
  uint64_t seed = 1;             // Of the initial weights.
  bool synchronous = false;      // One instruction at a time.
  // Only kCuda reads the following.
  int64_t ranks_per_device = 1;
  CollectivesKind collectives = CollectivesKind::kAuto;
  std::string
      tuning_table;  // Of kernels/cuda/cublaslt/tuning_table.h; absolute when it came from a job file. Empty: none.
  bool graphs = false;
  bool cudnn_attention = true;
  bool nccl_windows = false;

  bool operator==(const RuntimeConfig&) const = default;
};

// Compute threads of one of `ranks` ranks: threads_per_rank, or this machine's cores divided by them, at least 1.
inline int ThreadsPerRank(const RuntimeConfig& runtime, int64_t ranks) {
  if (runtime.threads_per_rank > 0) return static_cast<int>(runtime.threads_per_rank);
  const int64_t cores = std::thread::hardware_concurrency();
  return static_cast<int>(std::max<int64_t>(1, cores / std::max<int64_t>(1, ranks)));
}

struct Job {
  std::string name = "shale";
  ModelConfig model;
  std::string hf_folder;  // Initial weights: a Hugging Face folder of the same model; empty: random.
  DataConfig data;
  BatchConfig batch;
  ShardingConfig sharding;
  PrecisionConfig precision;
  MemoryConfig memory;
  OptimizerConfig optimizer;
  LearningRateConfig schedule;
  CheckpointConfig checkpoint;
  TelemetryConfig telemetry;
  RuntimeConfig runtime;

  bool operator==(const Job&) const = default;
};

// Tokens whose logits exist at once: the longer a chunk, the faster its products, and a small vocabulary makes it
// cheap.
inline int64_t LossChunkTokens(const Job& job) {
  if (job.memory.loss_chunk_tokens > 0) return job.memory.loss_chunk_tokens;
  constexpr int64_t kLogits = int64_t{1} << 23, kLeastTokens = 512;
  const int64_t tokens = RoundDown(kLogits / std::max<int64_t>(1, Vocabulary(job.model)), 64);  // Also a product's sum.
  return std::max(kLeastTokens, tokens);
}

}  // namespace shale
