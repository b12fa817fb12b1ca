#include "engine/config/job_from_spec.h"

#include "absl/strings/str_cat.h"
#include "engine/config/mix.h"
#include "engine/config/model_spec.h"
#include "engine/config/proto_enums.h"

namespace shale {
namespace {

DataConfig DataFromSpec(const proto::DataSpec& spec) {
  DataConfig config;
  config.path = spec.path();
  config.format = static_cast<DataFormat>(spec.format());
  config.order = FromSpec(spec.order(), config.order);
  if (spec.has_seed()) config.seed = spec.seed();
  config.evaluation_path = spec.evaluation_path();
  config.evaluation_fraction = spec.evaluation_fraction();
  config.target_weights = FromSpec(spec.target_weights(), config.target_weights);
  config.packing = FromSpec(spec.packing(), config.packing);
  if (spec.has_document_end_token()) config.document_end_token = spec.document_end_token();
  if (spec.has_document_begin_token()) config.document_begin_token = spec.document_begin_token();
  config.tokenizer = spec.tokenizer();
  config.loss_on = FromSpec(spec.loss_on(), config.loss_on);
  config.bad_lines = FromSpec(spec.bad_lines(), config.bad_lines);
  config.bad_bytes = FromSpec(spec.bad_bytes(), config.bad_bytes);
  config.splits = FromSpec(spec.splits(), config.splits);
  config.allow_dropped_text = spec.allow_dropped_text();
  config.spelled_tokens = FromSpec(spec.spelled_tokens(), config.spelled_tokens);
  config.date = spec.date();
  config.cache = spec.cache();
  config.long_documents = FromSpec(spec.long_documents(), config.long_documents);
  for (const std::string& text : spec.mix()) config.mix.push_back(MixedDataFromText(text));
  for (const std::string& text : spec.evaluation_sources()) {
    config.evaluation_sources.push_back(EvaluationSourceFromText(text));
  }
  return config;
}

BatchConfig BatchFromSpec(const proto::BatchSpec& spec) {
  BatchConfig config;
  config.global_batch = spec.global_batch();
  if (spec.has_micro_batch()) config.micro_batch = spec.micro_batch();
  config.sequence_length = spec.sequence_length();
  return config;
}

ShardingConfig ShardingFromSpec(const proto::ShardingSpec& spec) {
  ShardingConfig config;
  config.strategy = FromSpec(spec.strategy(), config.strategy);
  config.accumulation = FromSpec(spec.accumulation(), config.accumulation);
  if (spec.has_ranks()) config.ranks = spec.ranks();
  config.shard_ranks = spec.shard_ranks();
  if (spec.has_prefetch()) config.prefetch = spec.prefetch();
  if (spec.has_reshard_after_forward()) config.reshard_after_forward = spec.reshard_after_forward();
  return config;
}

// With `lean` (optimizer.state LEAN), fields that the job leaves open get the value that keeps the least state.
PrecisionConfig PrecisionFromSpec(const proto::PrecisionSpec& spec, bool lean) {
  PrecisionConfig config;
  if (lean) config.master = MasterWeights::kNone;
  config.compute = FromSpec(spec.compute(), config.compute);
  config.master = FromSpec(spec.master(), config.master);
  config.gradient_shards = FromSpec(spec.gradient_shards(), config.gradient_shards);
  config.allow_tf32 = spec.allow_tf32();
  return config;
}

MemoryConfig MemoryFromSpec(const proto::MemorySpec& spec) {
  MemoryConfig config;
  config.offload.assign(spec.offload().begin(), spec.offload().end());
  for (const int part : spec.offload_state()) {
    config.offload_state.moments |= part == proto::MemorySpec::MOMENTS;
    config.offload_state.masters |= part == proto::MemorySpec::MASTERS;
    config.offload_state.parameters |= part == proto::MemorySpec::PARAMETERS;
  }
  config.host_budget_bytes = spec.host_budget_bytes();
  config.keep_gradients = spec.keep_gradients();
  config.budget_bytes = spec.budget_bytes();
  config.loss_chunk_tokens = spec.loss_chunk_tokens();
  return config;
}

ActivationCheckpointingConfig CheckpointingFromSpec(const proto::ActivationCheckpointingSpec& spec) {
  ActivationCheckpointingConfig config;
  config.preset = FromSpec(spec.preset(), config.preset);
  if (spec.has_every_nth()) config.every_nth = spec.every_nth();
  config.first_layers = spec.first_layers();
  config.last_layers = spec.last_layers();
  if (spec.has_segment_blocks()) config.segment_blocks = spec.segment_blocks();
  config.segments = static_cast<Segments>(spec.segments());
  config.recompute.assign(spec.recompute().begin(), spec.recompute().end());
  return config;
}

OptimizerConfig OptimizerFromSpec(const proto::OptimizerSpec& spec, bool lean) {
  OptimizerConfig config;
  config.kind = FromSpec(spec.rule(), config.kind);
  if (lean) SetLeanMoments(config);
  config.moments = FromSpec(spec.moments(), config.moments);
  const Hyperparameters& defaults = EntryOf(config.kind).defaults;
  config.learning_rate = spec.has_learning_rate() ? spec.learning_rate() : defaults.learning_rate;
  config.beta1 = spec.has_beta1() ? spec.beta1() : defaults.beta1;
  config.beta2 = spec.has_beta2() ? spec.beta2() : defaults.beta2;
  config.epsilon = spec.has_epsilon() ? spec.epsilon() : defaults.epsilon;
  config.momentum = spec.has_momentum() ? spec.momentum() : defaults.momentum;
  config.nesterov = spec.has_nesterov() ? spec.nesterov() : defaults.nesterov;
  config.weight_decay = spec.has_weight_decay() ? spec.weight_decay() : defaults.weight_decay;
  config.no_decay.assign(spec.no_decay().begin(), spec.no_decay().end());
  config.train_only.assign(spec.train_only().begin(), spec.train_only().end());
  config.frozen_weights = FromSpec(spec.frozen_weights(), config.frozen_weights);
  if (spec.has_max_gradient_norm()) config.max_gradient_norm = spec.max_gradient_norm();
  config.clipping = FromSpec(spec.clipping(), config.clipping);
  config.update = FromSpec(spec.update(), config.update);
  config.device = FromSpec(spec.device(), config.device);
  config.non_finite = FromSpec(spec.non_finite(), config.non_finite);
  config.scaling = FromSpec(spec.scaling(), config.scaling);
  config.base_batch = spec.base_batch();
  return config;
}

LearningRateConfig LearningRateFromSpec(const proto::LearningRateSpec& spec) {
  LearningRateConfig config;
  config.shape = FromSpec(spec.shape(), config.shape);
  config.steps = spec.steps();
  config.epochs = spec.epochs();
  config.warmup_steps = spec.warmup_steps();
  config.warmup_samples = spec.warmup_samples();
  config.warmup_tokens = spec.warmup_tokens();
  if (spec.has_final_fraction()) config.final_fraction = spec.final_fraction();
  if (spec.has_decay_fraction()) config.decay_fraction = spec.decay_fraction();
  return config;
}

CheckpointConfig CheckpointFromSpec(const proto::CheckpointSpec& spec) {
  CheckpointConfig config;
  config.every_steps = spec.every_steps();
  if (spec.has_keep_last()) config.keep_last = spec.keep_last();
  config.keep_every = spec.keep_every();
  if (spec.has_asynchronous()) config.asynchronous = spec.asynchronous();
  config.on_failure = FromSpec(spec.on_failure(), config.on_failure);
  config.keep_best = spec.keep_best();
  config.patience = spec.patience();
  return config;
}

TelemetryConfig TelemetryFromSpec(const proto::TelemetrySpec& spec, const std::string& name) {
  TelemetryConfig config;
  config.run_folder = spec.run_folder().empty() ? absl::StrCat("runs/", name) : spec.run_folder();
  if (spec.has_print_every()) config.print_every = spec.print_every();
  config.evaluate_every = spec.evaluate_every();
  if (spec.has_evaluation_sequences()) config.evaluation_sequences = spec.evaluation_sequences();
  config.peak_flops = spec.peak_flops();
  config.peak_flops_measured = spec.peak_flops_measured();
  config.nvtx = spec.nvtx();
  config.sinks = {spec.sinks().events(), spec.sinks().tensorboard(), spec.sinks().prometheus()};
  return config;
}

RuntimeConfig RuntimeFromSpec(const proto::RuntimeSpec& spec) {
  RuntimeConfig config;
  config.device = FromSpec(spec.device(), config.device);
  config.ops = FromSpec(spec.ops(), config.ops);
  config.threads_per_rank = spec.threads_per_rank();
  config.cpu_products = FromSpec(spec.cpu_products(), config.cpu_products);
  if (spec.has_seed()) config.seed = spec.seed();
  config.synchronous = spec.synchronous();
  config.check_every_steps = spec.check_every_steps();
  if (spec.has_ranks_per_device()) config.ranks_per_device = spec.ranks_per_device();
  config.collectives = static_cast<CollectivesKind>(spec.collectives());
  config.tuning_table = spec.tuning_table();
  config.graphs = spec.graphs();
  config.nccl_windows = spec.nccl_windows();
  config.nccl_shares_gpus = spec.nccl_shares_gpus();
  config.generate = spec.generate();
  if (spec.has_cudnn_attention()) config.cudnn_attention = spec.cudnn_attention();
  if (spec.has_deterministic_attention()) config.deterministic_attention = spec.deterministic_attention();
  if (spec.has_attention_workspace_bytes()) config.attention_workspace_bytes = spec.attention_workspace_bytes();
  return config;
}

}  // namespace

Job JobFromSpec(const proto::Job& spec) {
  Job job;
  if (!spec.name().empty()) job.name = spec.name();
  job.model = ModelFromSpec(spec.model(), spec.batch().sequence_length());
  job.hf_folder = spec.model().hf_folder();
  job.adapter_folder = spec.model().adapter().folder();
  job.data = DataFromSpec(spec.data());
  job.batch = BatchFromSpec(spec.batch());
  job.sharding = ShardingFromSpec(spec.sharding());
  const bool lean = spec.optimizer().state() == proto::OptimizerSpec::LEAN;
  job.precision = PrecisionFromSpec(spec.precision(), lean);
  job.memory = MemoryFromSpec(spec.memory());
  job.activation_checkpointing = CheckpointingFromSpec(spec.activation_checkpointing());
  job.optimizer = OptimizerFromSpec(spec.optimizer(), lean);
  job.lr_schedule = LearningRateFromSpec(spec.lr_schedule());
  job.checkpoint = CheckpointFromSpec(spec.checkpoint());
  job.telemetry = TelemetryFromSpec(spec.telemetry(), job.name);
  job.runtime = RuntimeFromSpec(spec.runtime());
  return job;
}

}  // namespace shale
