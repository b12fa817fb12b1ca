#include <variant>

#include "engine/api/job.h"
#include "engine/config/mix.h"
#include "engine/config/model_spec.h"
#include "engine/config/proto_enums.h"
#include "google/protobuf/text_format.h"
#include "proto/job.pb.h"

namespace shale {
namespace {

void Print(const DataConfig& config, proto::DataSpec& spec) {
  spec.set_path(config.path);
  spec.set_format(static_cast<proto::DataSpec::Format>(config.format));
  spec.set_order(ToSpec<proto::DataSpec::Order>(config.order));
  spec.set_seed(config.seed);
  if (!config.evaluation_path.empty()) spec.set_evaluation_path(config.evaluation_path);
  spec.set_evaluation_fraction(config.evaluation_fraction);
  if (config.target_weights != TargetWeights::kNone) {
    spec.set_target_weights(ToSpec<proto::DataSpec::TargetWeights>(config.target_weights));
  }
  if (config.packing != Packing::kCut) spec.set_packing(ToSpec<proto::DataSpec::Packing>(config.packing));
  if (config.document_end_token >= 0) spec.set_document_end_token(config.document_end_token);
  if (config.document_begin_token >= 0) spec.set_document_begin_token(config.document_begin_token);
  if (!config.tokenizer.empty()) spec.set_tokenizer(config.tokenizer);
  if (config.loss_on != LossOn::kCompletions) spec.set_loss_on(ToSpec<proto::DataSpec::LossOn>(config.loss_on));
  if (config.bad_lines != BadLines::kRefuse) spec.set_bad_lines(ToSpec<proto::DataSpec::BadLines>(config.bad_lines));
  if (config.bad_bytes != BadBytes::kFail) spec.set_bad_bytes(ToSpec<proto::DataSpec::BadBytes>(config.bad_bytes));
  if (config.splits != Splits::kByName) spec.set_splits(ToSpec<proto::DataSpec::Splits>(config.splits));
  if (config.allow_dropped_text) spec.set_allow_dropped_text(true);
  if (config.spelled_tokens != SpelledTokens::kInMessages) {
    spec.set_spelled_tokens(ToSpec<proto::DataSpec::SpelledTokens>(config.spelled_tokens));
  }
  if (!config.date.empty()) spec.set_date(config.date);
  if (!config.cache.empty()) spec.set_cache(config.cache);
  if (config.long_documents != LongDocuments::kSplit) {
    spec.set_long_documents(ToSpec<proto::DataSpec::LongDocuments>(config.long_documents));
  }
  for (const MixedData& mixed : config.mix) spec.add_mix(ToText(mixed));
  for (const EvaluationSource& source : config.evaluation_sources) spec.add_evaluation_sources(ToText(source));
}

void Print(const BatchConfig& config, proto::BatchSpec& spec) {
  spec.set_global_batch(config.global_batch);
  spec.set_micro_batch(config.micro_batch);
  spec.set_sequence_length(config.sequence_length);
}

void Print(const ShardingConfig& config, proto::ShardingSpec& spec) {
  spec.set_strategy(ToSpec<proto::ShardingSpec::Strategy>(config.strategy));
  spec.set_accumulation(ToSpec<proto::ShardingSpec::Accumulation>(config.accumulation));
  spec.set_ranks(config.ranks);
  if (config.shard_ranks != 0) spec.set_shard_ranks(config.shard_ranks);
  if (config.strategy != Strategy::kFullShard) return;
  spec.set_prefetch(config.prefetch);
  spec.set_reshard_after_forward(config.reshard_after_forward);
}

void Print(const PrecisionConfig& config, proto::PrecisionSpec& spec) {
  spec.set_compute(ToSpec<proto::PrecisionSpec::Float>(config.compute));
  spec.set_master(ToSpec<proto::PrecisionSpec::Master>(config.master));
  if (config.gradient_shards != GradientShards::kFloat32) {
    spec.set_gradient_shards(ToSpec<proto::PrecisionSpec::Float>(config.gradient_shards));
  }
  if (config.allow_tf32) spec.set_allow_tf32(true);
}

void Print(const MemoryConfig& config, proto::MemorySpec& spec) {
  for (const std::string& pattern : config.offload) spec.add_offload(pattern);
  if (config.offload_state.moments) spec.add_offload_state(proto::MemorySpec::MOMENTS);
  if (config.offload_state.masters) spec.add_offload_state(proto::MemorySpec::MASTERS);
  if (config.offload_state.parameters) spec.add_offload_state(proto::MemorySpec::PARAMETERS);
  if (config.host_budget_bytes != 0) spec.set_host_budget_bytes(config.host_budget_bytes);
  if (config.keep_gradients) spec.set_keep_gradients(true);
  if (config.budget_bytes != 0) spec.set_budget_bytes(config.budget_bytes);
  if (config.loss_chunk_tokens != 0) spec.set_loss_chunk_tokens(config.loss_chunk_tokens);
}

void Print(const ActivationCheckpointingConfig& config, proto::ActivationCheckpointingSpec& spec) {
  spec.set_preset(ToSpec<proto::ActivationCheckpointingSpec::Preset>(config.preset));
  if (config.every_nth != 1) spec.set_every_nth(config.every_nth);
  if (config.first_layers != 0 || config.last_layers != 0) {
    spec.set_first_layers(config.first_layers);
    spec.set_last_layers(config.last_layers);
  }
  if (config.segments == Segments::kSqrt) {
    spec.set_segments(proto::ActivationCheckpointingSpec::SQRT);
  } else if (config.segment_blocks != 1) {
    spec.set_segment_blocks(config.segment_blocks);
  }
  for (const std::string& pattern : config.recompute) spec.add_recompute(pattern);
}

void Print(const OptimizerConfig& config, proto::OptimizerSpec& spec) {
  const OptimizerEntry& entry = EntryOf(config.kind);
  spec.set_rule(ToSpec<proto::OptimizerSpec::Rule>(config.kind));
  spec.set_learning_rate(config.learning_rate);
  if (entry.Reads("beta1")) spec.set_beta1(config.beta1);
  if (entry.Reads("beta2")) spec.set_beta2(config.beta2);
  if (entry.Reads("epsilon")) spec.set_epsilon(config.epsilon);
  if (entry.Reads("momentum")) spec.set_momentum(config.momentum);
  if (entry.Reads("nesterov")) spec.set_nesterov(config.nesterov);
  spec.set_weight_decay(config.weight_decay);
  if (config.moments != Moments::kFloat32) spec.set_moments(ToSpec<proto::OptimizerSpec::Moments>(config.moments));
  for (const std::string& pattern : config.no_decay) spec.add_no_decay(pattern);
  for (const std::string& pattern : config.train_only) spec.add_train_only(pattern);
  if (config.frozen_weights != FrozenWeights::kAsComputed) {
    spec.set_frozen_weights(ToSpec<proto::FrozenWeightsSpec::Storage>(config.frozen_weights));
  }
  spec.set_max_gradient_norm(config.max_gradient_norm);
  spec.set_clipping(ToSpec<proto::OptimizerSpec::Clipping>(config.clipping));
  spec.set_update(ToSpec<proto::OptimizerSpec::UpdateTime>(config.update));
  if (config.device != UpdateDevice::kSame) spec.set_device(ToSpec<proto::OptimizerSpec::Device>(config.device));
  spec.set_non_finite(ToSpec<proto::OptimizerSpec::NonFinite>(config.non_finite));
  spec.set_scaling(ToSpec<proto::OptimizerSpec::ScalingRule>(config.scaling));
  if (config.base_batch != 0) spec.set_base_batch(config.base_batch);
}

void Print(const LearningRateConfig& config, proto::LearningRateSpec& spec) {
  spec.set_shape(ToSpec<proto::LearningRateSpec::Shape>(config.shape));
  if (config.steps != 0) spec.set_steps(config.steps);
  if (config.epochs != 0) spec.set_epochs(config.epochs);
  if (config.warmup_steps != 0) spec.set_warmup_steps(config.warmup_steps);
  if (config.warmup_samples != 0) spec.set_warmup_samples(config.warmup_samples);
  if (config.warmup_tokens != 0) spec.set_warmup_tokens(config.warmup_tokens);
  if (config.shape != LearningRateShape::kConstant) spec.set_final_fraction(config.final_fraction);
  if (config.shape == LearningRateShape::kWarmupStableDecay) spec.set_decay_fraction(config.decay_fraction);
}

void Print(const CheckpointConfig& config, proto::CheckpointSpec& spec) {
  spec.set_every_steps(config.every_steps);
  spec.set_keep_last(config.keep_last);
  spec.set_keep_every(config.keep_every);
  spec.set_asynchronous(config.asynchronous);
  spec.set_on_failure(ToSpec<proto::CheckpointSpec::Failure>(config.on_failure));
  if (config.keep_best) spec.set_keep_best(true);
  if (config.patience != 0) spec.set_patience(config.patience);
}

void Print(const TelemetryConfig& config, proto::TelemetrySpec& spec) {
  if (!config.run_folder.empty()) spec.set_run_folder(config.run_folder);
  spec.set_print_every(config.print_every);
  spec.set_evaluate_every(config.evaluate_every);
  spec.set_evaluation_sequences(config.evaluation_sequences);
  if (config.peak_flops != 0) spec.set_peak_flops(config.peak_flops);
  if (!config.peak_flops_measured.empty()) spec.set_peak_flops_measured(config.peak_flops_measured);
  if (config.nvtx) spec.set_nvtx(true);
  const SinksConfig& sinks = config.sinks;
  if (!sinks.events.empty()) spec.mutable_sinks()->set_events(sinks.events);
  if (!sinks.tensorboard.empty()) spec.mutable_sinks()->set_tensorboard(sinks.tensorboard);
  if (!sinks.prometheus.empty()) spec.mutable_sinks()->set_prometheus(sinks.prometheus);
}

void Print(const RuntimeConfig& config, proto::RuntimeSpec& spec) {
  spec.set_device(ToSpec<proto::RuntimeSpec::Device>(config.device));
  spec.set_ops(ToSpec<proto::RuntimeSpec::Ops>(config.ops));
  if (config.threads_per_rank != 0) spec.set_threads_per_rank(config.threads_per_rank);
  if (config.device == DeviceType::kCpu && config.ops == OpsKind::kFast) {
    spec.set_cpu_products(ToSpec<proto::RuntimeSpec::CpuProducts>(config.cpu_products));
  }
  spec.set_seed(config.seed);
  spec.set_synchronous(config.synchronous);
  if (config.check_every_steps > 0) spec.set_check_every_steps(config.check_every_steps);
  if (config.generate) spec.set_generate(true);
  if (config.device != DeviceType::kCuda) return;
  spec.set_ranks_per_device(config.ranks_per_device);
  spec.set_collectives(static_cast<proto::RuntimeSpec::Collectives>(config.collectives));
  if (!config.tuning_table.empty()) spec.set_tuning_table(config.tuning_table);
  spec.set_graphs(config.graphs);
  spec.set_cudnn_attention(config.cudnn_attention);
  if (!config.deterministic_attention) spec.set_deterministic_attention(false);
  if (config.attention_workspace_bytes != RuntimeConfig().attention_workspace_bytes) {
    spec.set_attention_workspace_bytes(config.attention_workspace_bytes);
  }
  spec.set_nccl_windows(config.nccl_windows);
  if (config.nccl_shares_gpus) spec.set_nccl_shares_gpus(true);
}

}  // namespace

std::string ResolvedJobText(const Job& job) {
  proto::Job spec;
  spec.set_name(job.name);
  std::visit([&](const auto& model) { WriteSpec(model, *spec.mutable_model()); }, job.model);
  if (!job.hf_folder.empty()) spec.mutable_model()->set_hf_folder(job.hf_folder);
  if (!job.adapter_folder.empty()) spec.mutable_model()->mutable_adapter()->set_folder(job.adapter_folder);
  Print(job.data, *spec.mutable_data());
  Print(job.batch, *spec.mutable_batch());
  Print(job.sharding, *spec.mutable_sharding());
  Print(job.precision, *spec.mutable_precision());
  Print(job.memory, *spec.mutable_memory());
  Print(job.activation_checkpointing, *spec.mutable_activation_checkpointing());
  Print(job.optimizer, *spec.mutable_optimizer());
  Print(job.lr_schedule, *spec.mutable_lr_schedule());
  Print(job.checkpoint, *spec.mutable_checkpoint());
  Print(job.telemetry, *spec.mutable_telemetry());
  Print(job.runtime, *spec.mutable_runtime());

  google::protobuf::TextFormat::Printer printer;
  printer.SetUseUtf8StringEscaping(true);
  std::string text;
  printer.PrintToString(spec, &text);
  return kResolvedJobHead + text;
}

}  // namespace shale
