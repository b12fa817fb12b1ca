// A training run as plain copyable values: the settings of a job file, with every default that follows from the file
// filled in. The files in proto/job document the fields at length. A member is called like its field, which the
// generated engine/plan/config/job_members.h relies on. engine/api/job.h makes a Job from a file.
//
// A program that embeds the engine may fill in a Job itself and call ValidateJob (engine/api/job.h) to check it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/api/model.h"
#include "engine/compile/model/config.h"
#include "engine/compile/optimizer/optimizer.h"
#include "engine/compile/step/options_enums.h"
#include "engine/files/data/data_enums.h"
#include "kernels/cpu_matmuls.h"
#include "kernels/integers.h"

namespace shale {

// DataConfig::tokenizer where every byte is a token.
inline constexpr char kBytesTokenizer[] = "bytes";

// Data that is mixed into that of DataConfig::path.
struct MixedData {
  int64_t share = 0;  // How many of kMixWindow samples are of it, 1 to kMixWindow - 1.
  std::string path;   // As DataConfig::path.

  bool operator==(const MixedData&) const = default;
};

// Evaluation data with a name.
struct EvaluationSource {
  std::string name;
  std::string path;  // As DataConfig::path.

  bool operator==(const EvaluationSource&) const = default;
};
// The name of what DataConfig::evaluation_fraction holds out, if there are evaluation_sources too.
inline constexpr char kHeldOutSource[] = "held_out";

struct DataConfig {
  std::string path;  // A file or a folder; absolute if it came from a job file. Empty: the program gives the data.
  DataFormat format = DataFormat::kByContent;
  DataOrder order = DataOrder::kShuffled;
  uint64_t seed = 1;               // Seed of the order.
  std::string evaluation_path;     // Empty: none.
  double evaluation_fraction = 0;  // Fraction of path held out at its end; 0 if evaluation_path is given.
  TargetWeights target_weights = TargetWeights::kNone;  // kNone if path is given.
  Packing packing = Packing::kCut;
  int64_t document_end_token = -1;    // The last token of every document; -1: not given.
  int64_t document_begin_token = -1;  // The first token of every document; -1: not given. Not both.
  std::string tokenizer;  // A folder with tokenizer.json; "bytes" or empty: the tokens of text are its bytes.
  LossOn loss_on = LossOn::kCompletions;
  BadLines bad_lines = BadLines::kRefuse;
  BadBytes bad_bytes = BadBytes::kFail;  // kFail without a tokenizer.
  Splits splits = Splits::kByName;
  bool for_evaluation = false;      // Whether `path` is data to evaluate a model on. No field of a job.
  bool allow_dropped_text = false;  // Whether chat templates may leave out what messages say.
  SpelledTokens spelled_tokens = SpelledTokens::kInMessages;
  std::string date;   // The day that chat templates write as today's, "2026-11-28". Empty: none.
  std::string cache;  // Keeps the tokens of text. Empty: beside the run folder.
  LongDocuments long_documents = LongDocuments::kSplit;
  std::vector<MixedData> mix;                        // The shares sum to less than kMixWindow; path has what is left.
  std::vector<EvaluationSource> evaluation_sources;  // None if evaluation_path is given.

  // Returns whether files have evaluation data.
  bool has_evaluation() const {
    return !evaluation_path.empty() || evaluation_fraction > 0 || !evaluation_sources.empty();
  }
  // Returns which files there are at `path` or, with `evaluation`, at a path of evaluation data.
  DataFilesOptions files(bool evaluation) const {
    return {.format = format, .splits = splits, .for_evaluation = for_evaluation || evaluation};
  }
  // Returns whether a tokenizer makes tokens of text.
  bool has_tokenizer() const { return !tokenizer.empty() && tokenizer != kBytesTokenizer; }

  bool operator==(const DataConfig&) const = default;
};

struct BatchConfig {
  int64_t global_batch = 0;     // Sequences in one optimizer step, over all ranks.
  int64_t micro_batch = 1;      // Sequences that one rank runs at once.
  int64_t sequence_length = 0;  // In tokens.

  bool operator==(const BatchConfig&) const = default;
};

struct ShardingConfig {
  Strategy strategy = Strategy::kFullShard;
  Accumulation accumulation = Accumulation::kAuto;
  int64_t ranks = 1;
  int64_t shard_ranks = 0;            // Ranks that divide the state: a divisor of `ranks`; 0: all.
  int64_t prefetch = 1;               // Units gathered ahead of use. Only kFullShard reads it.
  bool reshard_after_forward = true;  // Only kFullShard reads it.

  bool operator==(const ShardingConfig&) const = default;
};

// Returns the number of ranks over which the state is sharded. Each group of that many ranks holds a copy of the state.
inline int64_t ShardRanks(const ShardingConfig& sharding) {
  return sharding.shard_ranks > 0 ? sharding.shard_ranks : sharding.ranks;
}

// Returns how many micro-batches each rank runs in one optimizer step.
inline int64_t AccumulationSteps(const BatchConfig& batch, int64_t ranks) {
  return CeilDivide(batch.global_batch, batch.micro_batch * ranks);
}

enum class ComputePrecision { kFloat32, kBFloat16, kFloat16 };

// Returns the dtype of weights and activations.
inline DType DTypeOf(ComputePrecision compute) {
  switch (compute) {
    case ComputePrecision::kFloat32: return DType::kFloat32;
    case ComputePrecision::kBFloat16: return DType::kBFloat16;
    case ComputePrecision::kFloat16: return DType::kFloat16;
  }
  return DType::kFloat32;
}

// The dtype in which gradients are summed over the micro-batches of a step.
enum class GradientShards { kFloat32, kBFloat16 };

// The dtype in which gradients leave a rank to be summed over ranks.
enum class ReducePrecision { kFloat32, kBFloat16 };

// The number format of the operands of linear layers' matmuls.
enum class MatMulPrecision { kAsComputed, kFloat8 };

// The format of gradients in matmuls of kFloat8.
enum class Float8Gradients { kE5M2, kE4M3 };

// What has a scale in matmuls of kFloat8: a matrix, or a tile or block of one.
enum class Float8Scaling { kTensorwise, kBlockwise };

struct PrecisionConfig {
  ComputePrecision compute = ComputePrecision::kFloat32;
  MasterWeights master = MasterWeights::kFloat32;
  GradientShards gradient_shards = GradientShards::kFloat32;
  ReducePrecision reduce = ReducePrecision::kFloat32;
  bool allow_tf32 = false;   // Lets fp32 matmuls round their operands to TF32. Only kCuda reads it.
  bool fp32_logits = false;  // GraphOptions::fp32_logits. Not with kFloat32, whose logits have it anyway.
  MatMulPrecision matmuls = MatMulPrecision::kAsComputed;  // kFloat8 not with ComputePrecision::kFloat32.
  Float8Gradients fp8_gradients = Float8Gradients::kE5M2;  // Only MatMulPrecision::kFloat8 reads it.
  Float8Scaling fp8_scaling = Float8Scaling::kTensorwise;  // Only MatMulPrecision::kFloat8 reads it.
  // Dynamic loss scaling (LossScaling in engine/compile/step/options.h). Only kFloat16 has it.
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  int64_t max_skipped_steps = 50;  // In a row, with NonFinite::kStop.

  // Returns whether masters, or low bits of them, are stored beside the weights.
  bool has_masters() const { return compute != ComputePrecision::kFloat32 && master != MasterWeights::kNone; }
  bool operator==(const PrecisionConfig&) const = default;
};

struct MemoryConfig {
  std::vector<std::string> offload;  // Name patterns of tensors that wait for their backward in host memory.
  StateOffload offload_state;        // Parts of the state that lie in host memory.
  int64_t host_budget_bytes = 0;     // Bytes that one rank may offload; 0: derived from the machine's memory.
  int64_t budget_bytes = 0;          // Bytes that one rank may plan; 0: derived from the machine's memory.
  bool keep_gradients = false;       // Whether a step's reduced gradients can be read until the next step.
  int64_t loss_chunk_tokens = 0;     // Tokens whose logits exist at once; 0: see LossChunkTokens.

  bool operator==(const MemoryConfig&) const = default;
};

// How many blocks a segment of activation checkpointing has (engine/compile/step/options_enums.h).
enum class Segments {
  kGiven,  // As many as the job says, 1 by default.
  kSqrt,   // About the square root of the number of chosen blocks.
};

struct ActivationCheckpointingConfig {
  CheckpointingPreset preset = CheckpointingPreset::kNone;
  // The blocks that the preset applies to. If a + b > 0, these are the first a and the last b; else 0, n, 2n, ...
  int64_t every_nth = 1;       // n
  int64_t first_layers = 0;    // a
  int64_t last_layers = 0;     // b
  int64_t segment_blocks = 1;  // Chosen blocks in a row that keep one boundary. Ignored with kSqrt.
  Segments segments = Segments::kGiven;
  std::vector<std::string> recompute;  // Name patterns of further tensors to recompute; '*' matches any characters.

  // Returns the blocks that the preset applies to in a model of `layers` blocks.
  ChosenBlocks Chosen(int64_t layers) const { return {layers, every_nth, first_layers, last_layers}; }

  bool operator==(const ActivationCheckpointingConfig&) const = default;
};

enum class NonFinite { kStop, kSkip };
// The dtype of an optimizer's states.
enum class Moments { kFloat32, kBFloat16 };
// How the learning rate depends on the global batch (engine/plan/config/learning_rate.h has the formulas).
enum class LearningRateScaling { kConstant, kLinear, kSquareRoot };

// Parameters that are updated in a way of their own. What is empty is that of OptimizerConfig, but with another rule
// the rule's default.
struct OptimizerGroupConfig {
  std::vector<std::string> parameters;  // Name patterns.
  std::optional<OptimizerKind> kind;
  double learning_rate_factor = 1;  // On the job's learning rate.
  std::optional<double> weight_decay, beta1, beta2, epsilon, momentum;
  std::optional<bool> nesterov;
  std::optional<int64_t> newton_schulz_steps;
  std::optional<RateAdjustment> rate_adjustment;
  // The largest norm of its gradients alone; 0: they are not clipped. Empty: they are clipped with those of the job.
  std::optional<double> max_gradient_norm;

  bool operator==(const OptimizerGroupConfig&) const = default;
};

struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double learning_rate = 3e-4;  // Peak, before the scaling rule.
  // A field that the optimizer does not read has its default value.
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double momentum = 0;
  bool nesterov = false;
  double weight_decay = 0.1;
  Moments moments = Moments::kFloat32;
  bool relative_step = true;
  bool scale_parameter = true;
  int64_t newton_schulz_steps = 5;
  RateAdjustment rate_adjustment = RateAdjustment::kOriginal;
  std::vector<std::string> no_decay;    // Name patterns of parameters without decay. Vectors never decay.
  std::vector<std::string> train_only;  // Name patterns of the parameters that train. Empty: all.
  Storage frozen_weights = Storage::kAsUsed;
  double max_gradient_norm = 1;  // 0: no clipping.
  Clipping clipping = Clipping::kGlobal;
  UpdateTime update = UpdateTime::kAfterBackward;
  UpdateDevice device = UpdateDevice::kSame;
  NonFinite non_finite = NonFinite::kStop;
  LearningRateScaling scaling = LearningRateScaling::kConstant;
  int64_t base_batch = 0;  // In sequences; 0 if scaling is kConstant.
  std::vector<OptimizerGroupConfig> groups;

  bool operator==(const OptimizerConfig&) const = default;
};

// Gives a config the defaults of its rule (config.kind).
void SetDefaultsOfRule(OptimizerConfig& config);
// Return the optimizer of a job with its hyper-parameters, and those of its groups.
Optimizer MakeOptimizer(const OptimizerConfig& config);
std::vector<Optimizer> MakeGroupOptimizers(const OptimizerConfig& config);
// Returns whether one of them keeps states that can move to the host (StepOptions::has_states).
bool HasStates(const OptimizerConfig& config);
// Returns the patterns of the groups (GraphOptions::optimizer_groups).
std::vector<std::vector<std::string>> PatternsOfGroups(const OptimizerConfig& config);
// Returns the groups, -1 for the job's own rule, whose rule is one of matrices (GraphOptions::divided_groups).
std::vector<int> DividedGroups(const OptimizerConfig& config);
// Returns the rule that updates a parameter if it trains.
OptimizerKind KindOf(const OptimizerConfig& config, absl::string_view parameter);

// Returns whether the job's rule or that of a group keeps states in a dtype that `moments` chooses.
bool ReadsMoments(const OptimizerConfig& config);
// Chooses the moments of optimizer.state LEAN: bf16, unless the optimizer's states are smaller already.
void SetLeanMoments(OptimizerConfig& config);
// Returns a sentence for each group that has another rule than the job and takes the job's learning rate unchanged,
// although that is not near the usual rate of its own rule.
std::vector<std::string> LearningRateRemarks(const OptimizerConfig& config);

enum class LearningRateShape { kConstant, kLinear, kCosine, kWarmupStableDecay };

struct LearningRateConfig {
  LearningRateShape shape = LearningRateShape::kCosine;
  // Length of the run. One of the two is positive, and the other is 0.
  int64_t steps = 0;  // In optimizer steps.
  double epochs = 0;  // In epochs (times through the data).
  // Length of the linear warm-up. At most one of the three is positive.
  int64_t warmup_steps = 0;
  int64_t warmup_samples = 0;
  int64_t warmup_tokens = 0;
  double final_fraction = 0.1;  // Rate at the end, as a fraction of the peak. kConstant does not read it.
  double decay_fraction = 0.2;  // Fraction of the run that decays. Only kWarmupStableDecay reads it.

  bool operator==(const LearningRateConfig&) const = default;
};

// What the run does when a checkpoint cannot be written: it stops with an error, or it goes on.
enum class SaveFailure { kStop, kContinue };

struct CheckpointConfig {
  int64_t every_steps = 0;  // Steps between checkpoints; 0: only at the end.
  int64_t keep_last = 2;
  int64_t keep_every = 0;    // A checkpoint is kept forever if its step is a multiple of this; 0: none.
  bool asynchronous = true;  // Read only if saves_on_the_way(), because no training follows the save at the end.
  SaveFailure on_failure = SaveFailure::kStop;
  bool keep_best = false;  // Saves after an evaluation with the lowest loss so far, and keeps the best checkpoint.
  int64_t patience = 0;    // Evaluations without a lower loss that end the run; 0: none does.

  // Returns whether the run may save before its end.
  bool saves_on_the_way() const { return every_steps > 0 || keep_best; }
  bool operator==(const CheckpointConfig&) const = default;
};

// Where events go (engine/run/events). Empty: nowhere. A relative path is resolved in the run folder.
struct SinksConfig {
  std::string events;
  std::string tensorboard;
  std::string prometheus;

  bool operator==(const SinksConfig&) const = default;
};

struct TelemetryConfig {
  std::string run_folder;
  int64_t print_every = 1;            // In steps.
  int64_t evaluate_every = 0;         // In steps; 0: only at the end.
  int64_t evaluation_sequences = 64;  // Sequences of one evaluation, over all ranks.
  double peak_flops = 0;              // FLOP/s of one rank; 0: PeakFlops (engine/run/train/reports.h) finds it.
  std::string peak_flops_measured;    // When peak_flops was measured. Empty: it was not, it was set.
  bool nvtx = false;                  // Ranges for a profiler, even if none has asked for them.
  SinksConfig sinks;

  bool operator==(const TelemetryConfig&) const = default;
};

enum class DeviceType { kCpu, kCuda };
// kAuto: NCCL if every rank has a GPU of its own, or with nccl_shares_gpus; else in process.
enum class CollectivesKind { kAuto, kNccl, kInProcess };

struct RuntimeConfig {
  DeviceType device = DeviceType::kCpu;
  OpsKind ops = OpsKind::kFast;
  int64_t threads_per_rank = 0;                // 0: see ThreadsPerRank.
  CpuMatMuls cpu_matmuls = CpuMatMuls::kAuto;  // Only the fast ops of kCpu read it.
  uint64_t seed = 1;                           // Seed of the initial weights.
  bool synchronous = false;                    // Runs one instruction at a time.
  int64_t check_every_steps = 0;               // Steps between checks of the state. 0: never.
  bool generate = false;                       // Plans the programs of LiveGenerator.
  std::vector<std::string> search;             // Fields that a run decides before it plans (DecideFields). "*": all.
  // Only kCuda reads the following.
  int64_t ranks_per_device = 1;
  CollectivesKind collectives = CollectivesKind::kAuto;
  // Path of a file, or of a folder with one for each kind of GPU; absolute if it came from a job file. Empty: none.
  std::string tuning_table;
  std::optional<bool> graphs;  // Not set: see UsesGraphs.
  // Not set: cuDNN's kernels, but the engine's own where these were measured to be faster (AttentionOptionsOn,
  // engine/run/backends/cuda_planning.h).
  std::optional<bool> cudnn_attention;
  bool deterministic_attention = true;  // Whether gradients of attention repeat their bits.
  // CudnnAttentionOptions::workspace_bytes, which then does not grow. Not set: its default, and what the plan has room
  // for.
  std::optional<int64_t> attention_workspace_bytes;
  bool nccl_windows = false;
  bool nccl_shares_gpus = false;  // For tests: ranks that share a GPU are processes, which NCCL joins.

  bool operator==(const RuntimeConfig&) const = default;
};

// Returns how many compute threads one rank uses when the process runs `ranks` ranks on a machine with
// `hardware_threads` threads (Machine::hardware_threads). This is threads_per_rank if it is set, else an equal share of
// the machine's threads, at least 1.
inline int ThreadsPerRank(const RuntimeConfig& runtime, int64_t ranks, int64_t hardware_threads) {
  if (runtime.threads_per_rank > 0) return static_cast<int>(runtime.threads_per_rank);
  return static_cast<int>(std::max<int64_t>(1, hardware_threads / std::max<int64_t>(1, ranks)));
}

struct Job {
  std::string name = "shale";
  ModelConfig model;      // SetModel (engine/api/job.h) sets a model that the program brings.
  std::string hf_folder;  // A Hugging Face folder of the same model with the initial weights. Empty: random weights.
  std::string adapter_folder;  // A PEFT folder with the initial values of the model's adapters. Empty: see Initializer.
  DataConfig data;
  BatchConfig batch;
  ShardingConfig sharding;
  PrecisionConfig precision;
  MemoryConfig memory;
  ActivationCheckpointingConfig activation_checkpointing;
  OptimizerConfig optimizer;
  LearningRateConfig lr_schedule;
  CheckpointConfig checkpoint;
  TelemetryConfig telemetry;
  RuntimeConfig runtime;

  bool operator==(const Job&) const = default;
};

// Returns how many tokens have their logits in memory at the same time. A longer chunk makes faster matmuls, and with a
// small vocabulary it costs little memory.
inline int64_t LossChunkTokens(const Job& job) {
  if (job.memory.loss_chunk_tokens > 0) return job.memory.loss_chunk_tokens;
  constexpr int64_t kLogits = int64_t{1} << 23, kLeastTokens = 512;
  // Rounds to a multiple of 64, because the matmul of the head's weight gradient sums over the tokens of a chunk.
  const int64_t tokens = RoundDown(kLogits / std::max<int64_t>(1, Vocabulary(job.model)), 64);
  return std::max(kLeastTokens, tokens);
}

// Returns whether iterations run as graphs of CUDA. Where the job does not say it, they do if that makes a step faster:
// on one rank of which nothing waits in host memory, because a graph ends before the next one begins, so that copies do
// not overlap with other work (engine/compile/program/graphs.h), and with a number of graphs that does not grow with
// the number of micro-batches.
inline bool UsesGraphs(const Job& job, Accumulation accumulation) {
  const RuntimeConfig& runtime = job.runtime;
  if (runtime.graphs) return *runtime.graphs;
  const MemoryConfig& memory = job.memory;
  return runtime.device == DeviceType::kCuda && job.sharding.ranks == 1 && !runtime.synchronous &&
         accumulation != Accumulation::kLayered && memory.offload.empty() && !memory.offload_state.any() &&
         job.optimizer.device != UpdateDevice::kHost;
}
// Does the same for a job whose accumulation is decided.
inline bool UsesGraphs(const Job& job) { return UsesGraphs(job, job.sharding.accumulation); }

// Returns how many consecutive blocks keep one boundary together (engine/compile/step/options_enums.h). 1: each keeps
// its own.
inline int64_t SegmentBlocks(const Job& job) {
  const ActivationCheckpointingConfig& config = job.activation_checkpointing;
  if (config.segments == Segments::kGiven) return config.segment_blocks;
  return SqrtSegmentBlocks(config.Chosen(Layers(job.model)));
}

}  // namespace shale
