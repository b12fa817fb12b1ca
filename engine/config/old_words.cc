#include "engine/config/old_words.h"

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace shale {
namespace {

struct Word {
  absl::string_view old, today;
};

// Former fields, and fields of PyTorch, Hugging Face transformers and accelerate, DeepSpeed, Megatron and torchtitan.
constexpr Word kFields[] = {
    {"retention", "activation_checkpointing.preset"},
    {"schedule", "lr_schedule, or sharding.accumulation"},
    {"evaluation_batches", "telemetry.evaluation_sequences, counted over all ranks"},
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
    {"fp16", "precision.compute=BF16; fp16 is not supported"},
    {"mixed_precision", "precision.compute=BF16"},
    {"dtype", "precision.compute"},
    {"tf32", "precision.allow_tf32"},
    {"bf16_stochastic_rounding", "precision.master=NONE, or optimizer.state=LEAN"},
    {"stochastic_rounding", "precision.master=NONE, or optimizer.state=LEAN"},
    {"fp32_master_weights", "precision.master"},
    {"master_weights", "precision.master"},
    {"bf16_master_weights_and_grads", "precision.master=NONE and precision.gradient_shards=BF16"},
    {"grad_accum_dtype", "precision.gradient_shards"},
    {"gradient_accumulation_dtype", "precision.gradient_shards"},
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

// Values of enum fields, in upper case without "_" and "-": former ones, and those of DeepSpeed, PyTorch and Megatron.
constexpr Word kValues[] = {
    {"KEEPALL", "NONE"},
    {"DEFERRED", "NO_SYNC"},
    {"NONE", "DDP"},
    {"OPTIMIZER", "ZERO1"},
    {"GRADIENTS", "ZERO2"},
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
std::string TodaysWord(const Word (&words)[n], absl::string_view old) {
  for (const Word& word : words) {
    if (word.old == old) return std::string(word.today);
  }
  return "";
}

// Returns whether a field of the former message `memory` is in activation_checkpointing now.
bool IsCheckpointing(absl::string_view field) {
  return field == "retention" || field == "every_nth" || field == "first_layers" || field == "last_layers" ||
         field == "recompute";
}

}  // namespace

std::string TodaysField(absl::string_view name) { return TodaysWord(kFields, absl::AsciiStrToLower(name)); }

std::string TodaysValue(absl::string_view name) {
  return TodaysWord(kValues, absl::StrReplaceAll(absl::AsciiStrToUpper(name), {{"_", ""}, {"-", ""}}));
}

std::string RecordedValueInTodaysWords(absl::string_view field, absl::string_view value) {
  struct Renamed {
    absl::string_view field;
    Word value;
  };
  constexpr Renamed kRenamed[] = {{"strategy", {"NONE", "DDP"}},         {"strategy", {"OPTIMIZER", "ZERO1"}},
                                  {"strategy", {"GRADIENTS", "ZERO2"}},  {"strategy", {"FULL", "FULL_SHARD"}},
                                  {"schedule", {"DEFERRED", "NO_SYNC"}}, {"accumulation", {"DEFERRED", "NO_SYNC"}},
                                  {"retention", {"KEEP_ALL", "NONE"}}};
  for (const Renamed& renamed : kRenamed) {
    if (renamed.field == field && renamed.value.old == value) return std::string(renamed.value.today);
  }
  return std::string(value);
}

std::string InTodaysWords(absl::string_view resolved_job) {
  const std::vector<absl::string_view> lines = absl::StrSplit(resolved_job, '\n');
  std::vector<std::string> out, checkpointing;
  std::string message;  // The outermost message that is open.
  int depth = 0;
  for (absl::string_view line : lines) {
    const absl::string_view text = absl::StripLeadingAsciiWhitespace(line);
    if (absl::EndsWith(text, "{")) {
      if (depth++ == 0) {
        message = std::string(absl::StripTrailingAsciiWhitespace(text.substr(0, text.size() - 1)));
        if (message == "schedule") {
          out.push_back("lr_schedule {");
          continue;
        }
      }
    } else if (text == "}") {
      --depth;
    } else if (depth == 1 && message == "telemetry" && absl::StartsWith(text, "evaluation_batches: ")) {
      continue;  // It counted micro-batches of each rank, and no result of the former run depends on it.
    } else if (depth == 1 && (message == "sharding" || message == "memory")) {
      const std::pair<absl::string_view, absl::string_view> field = absl::StrSplit(text, absl::MaxSplits(": ", 1));
      const std::string value = RecordedValueInTodaysWords(field.first, field.second);
      if (message == "memory" && IsCheckpointing(field.first)) {
        checkpointing.push_back(absl::StrCat("  ", field.first == "retention" ? "preset" : field.first, ": ", value));
        continue;
      }
      if (field.first == "schedule" || value != field.second) {
        out.push_back(absl::StrCat("  ", field.first == "schedule" ? "accumulation" : field.first, ": ", value));
        continue;
      }
    }
    out.emplace_back(line);
  }
  if (!checkpointing.empty()) {
    // Since the text ends in a newline, its last line is empty.
    if (!out.empty() && out.back().empty()) out.pop_back();
    out.push_back(absl::StrCat("activation_checkpointing {\n", absl::StrJoin(checkpointing, "\n"), "\n}\n"));
  }
  return absl::StrJoin(out, "\n");
}

}  // namespace shale
