#include <cstddef>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_replace.h"
#include "engine/plan/config/errors.h"

namespace shale {
namespace {

struct Word {
  absl::string_view theirs, ours;
};

// Fields of PyTorch, Hugging Face transformers and accelerate, DeepSpeed, Megatron and torchtitan.
constexpr Word kFields[] = {
    {"gradient_checkpointing", "activation_checkpointing.preset=BLOCK"},
    {"activation_checkpoint", "activation_checkpointing"},
    {"recompute_granularity", "activation_checkpointing.preset"},
    {"recompute_method", "activation_checkpointing.segments"},
    {"recompute_num_layers", "activation_checkpointing.segment_blocks"},
    {"number_checkpoints", "activation_checkpointing.segment_blocks, the blocks for each of them"},
    {"gradient_accumulation_steps",
     "batch.global_batch; the steps follow from it: global_batch / (micro_batch x ranks)"},
    {"accumulation_steps", "batch.global_batch; the steps follow from it: global_batch / (micro_batch x ranks)"},
    {"per_device_train_batch_size", "batch.micro_batch"},
    {"train_micro_batch_size_per_gpu", "batch.micro_batch"},
    {"micro_batch_size", "batch.micro_batch"},
    {"train_batch_size", "batch.global_batch"},
    {"global_batch_size", "batch.global_batch"},
    {"batch_size", "batch.global_batch, or batch.micro_batch of one rank"},
    {"seq_len", "batch.sequence_length"},
    {"seq_length", "batch.sequence_length"},
    {"max_seq_length", "batch.sequence_length"},
    {"block_size", "batch.sequence_length"},
    {"zero_stage", "sharding.strategy (ZERO1, ZERO2, or FULL_SHARD for stage 3)"},
    {"zero_optimization", "sharding.strategy (ZERO1, ZERO2, or FULL_SHARD for stage 3)"},
    {"stage", "sharding.strategy (ZERO1, ZERO2, or FULL_SHARD for stage 3)"},
    {"fsdp", "sharding.strategy=FULL_SHARD"},
    {"ddp", "sharding.strategy=DDP"},
    {"no_sync", "sharding.accumulation=NO_SYNC"},
    {"reshard_after_forward_policy", "sharding.reshard_after_forward"},
    {"hybrid_shard", "sharding.shard_ranks"},
    {"hsdp", "sharding.shard_ranks"},
    {"data_parallel_replicate_degree", "sharding.shard_ranks, which is sharding.ranks / the degree"},
    {"dp_replicate", "sharding.shard_ranks, which is sharding.ranks / the degree"},
    {"data_parallel_shard_degree", "sharding.shard_ranks"},
    {"zero_hpz_partition_size", "sharding.shard_ranks"},
    {"world_size", "sharding.ranks"},
    {"nproc_per_node", "sharding.ranks"},
    {"bf16", "precision.compute=BF16"},
    {"fp16", "precision.compute=FP16"},
    {"mixed_precision", "precision.compute=BF16"},
    {"dtype", "precision.compute"},
    {"tf32", "precision.allow_tf32"},
    {"fp8", "precision.matmuls=FP8"},
    {"float8", "precision.matmuls=FP8"},
    {"convert_to_float8_training", "precision.matmuls=FP8"},
    {"float8_block_scaling", "precision.fp8_scaling=BLOCKWISE"},
    {"scaling_granularity", "precision.fp8_scaling"},
    {"upcast_logits", "precision.fp32_logits"},
    {"fp32_lm_head", "precision.fp32_logits"},
    {"bf16_stochastic_rounding", "precision.master=NONE, or optimizer.state=LEAN"},
    {"stochastic_rounding", "precision.master=NONE, or optimizer.state=LEAN"},
    {"fp32_master_weights", "precision.master"},
    {"master_weights", "precision.master"},
    {"bf16_master_weights_and_grads", "precision.master=NONE and precision.gradient_shards=BF16"},
    {"grad_accum_dtype", "precision.gradient_shards"},
    {"gradient_accumulation_dtype", "precision.gradient_shards"},
    {"reduce_dtype", "precision.reduce"},
    {"mixed_precision_reduce", "precision.reduce"},
    {"communication_data_type", "precision.reduce"},
    {"bf16_optimizer_states", "optimizer.moments=BF16"},
    {"use_bf16_optimizer_states", "optimizer.moments=BF16"},
    {"exp_avg_dtype", "optimizer.moments"},
    {"exp_avg_sq_dtype", "optimizer.moments"},
    {"max_grad_norm", "optimizer.max_gradient_norm"},
    {"gradient_clipping", "optimizer.max_gradient_norm"},
    {"grad_clip", "optimizer.max_gradient_norm"},
    {"unfrozen_parameters", "optimizer.train_only"},
    {"trainable_parameters", "optimizer.train_only"},
    {"freeze", "optimizer.train_only, which names what trains"},
    {"load_in_4bit", "optimizer.frozen_weights=NF4"},
    {"bnb_4bit_quant_type", "optimizer.frozen_weights=NF4"},
    {"quantization_config", "optimizer.frozen_weights=NF4"},
    {"frozen", "optimizer.frozen_weights, or optimizer.train_only"},
    {"peft_config", "model.adapter"},
    {"lora", "model.adapter"},
    {"lora_r", "model.adapter.rank"},
    {"lora_rank", "model.adapter.rank"},
    {"lora_alpha", "model.adapter.alpha"},
    {"lora_dropout", "model.adapter, which has no dropout"},
    {"use_rslora", "model.adapter.rank_stabilized"},
    {"target_modules", "model.adapter.targets"},
    {"lora_target_modules", "model.adapter.targets"},
    {"lr", "optimizer.learning_rate"},
    {"adam_beta1", "optimizer.beta1"},
    {"adam_beta2", "optimizer.beta2"},
    {"betas", "optimizer.beta1 and optimizer.beta2"},
    {"eps", "optimizer.epsilon"},
    {"adam_epsilon", "optimizer.epsilon"},
    {"optim", "optimizer.rule"},
    {"lr_scheduler_type", "lr_schedule.shape"},
    {"lr_scheduler", "lr_schedule"},
    {"warmup_ratio", "lr_schedule.warmup_steps; a ratio times lr_schedule.steps"},
    {"max_steps", "lr_schedule.steps"},
    {"num_train_epochs", "lr_schedule.epochs"},
    {"save_steps", "checkpoint.every_steps"},
    {"save_total_limit", "checkpoint.keep_last"},
    {"eval_steps", "telemetry.evaluate_every"},
    {"logging_steps", "telemetry.print_every"},
    {"output_dir", "telemetry.run_folder"},
    {"model_name_or_path", "model.hf_folder"},
    {"offload_optimizer", "optimizer.device=HOST, or memory.offload_state=[MOMENTS, MASTERS]"},
    {"offload_optimizer_device", "optimizer.device=HOST, or memory.offload_state=[MOMENTS, MASTERS]"},
    {"optimizer_cpu_offload", "optimizer.device=HOST, or memory.offload_state=[MOMENTS, MASTERS]"},
    {"optimizer_offload", "optimizer.device=HOST, or memory.offload_state=[MOMENTS, MASTERS]"},
    {"offload_param", "memory.offload_state=PARAMETERS"},
    {"offload_param_device", "memory.offload_state=PARAMETERS"},
    {"offload_params", "memory.offload_state=PARAMETERS"},
    {"cpu_offload", "memory.offload_state=[MOMENTS, MASTERS, PARAMETERS]"},
    {"fsdp_offload_params", "memory.offload_state=[MOMENTS, MASTERS, PARAMETERS]"},
    {"activation_offloading", "memory.offload=*"},
    {"activation_cpu_offload", "memory.offload=*"},
    {"torch_compile", "nothing: every step is compiled"},
};

// Values of enum fields of DeepSpeed, PyTorch and Megatron, in upper case without "_" and "-".
constexpr Word kValues[] = {
    {"NONE", "DDP"},
    {"FULL", "FULL_SHARD"},
    {"ZERO0", "DDP"},
    {"ZERO3", "FULL_SHARD"},
    {"STAGE0", "DDP"},
    {"STAGE1", "ZERO1"},
    {"STAGE2", "ZERO2"},
    {"STAGE3", "FULL_SHARD"},
    {"ZEROSTAGE0", "DDP"},
    {"ZEROSTAGE1", "ZERO1"},
    {"ZEROSTAGE2", "ZERO2"},
    {"ZEROSTAGE3", "FULL_SHARD"},
    {"FSDP", "FULL_SHARD"},
    {"FSDP2", "FULL_SHARD"},
    {"SHARDGRADOP", "ZERO2"},
    {"HYBRIDSHARD", "FULL_SHARD with sharding.shard_ranks"},
    {"HYBRIDSHARDZERO2", "ZERO2 with sharding.shard_ranks"},
    {"HSDP", "FULL_SHARD with sharding.shard_ranks"},
    {"NOSHARD", "DDP"},
    {"OPTIM", "ZERO1"},
    {"OPTIMGRADS", "ZERO2"},
    {"OPTIMGRADSPARAMS", "FULL_SHARD"},
    {"GPU", "CUDA"},
    {"NVIDIA", "CUDA"},
};

template <size_t n>
std::string Ours(const Word (&words)[n], absl::string_view theirs) {
  for (const Word& word : words) {
    if (word.theirs == theirs) return std::string(word.ours);
  }
  return "";
}

}  // namespace

std::string OurField(absl::string_view name) { return Ours(kFields, absl::AsciiStrToLower(name)); }

std::string OurValue(absl::string_view name) {
  return Ours(kValues, absl::StrReplaceAll(absl::AsciiStrToUpper(name), {{"_", ""}, {"-", ""}}));
}

}  // namespace shale
