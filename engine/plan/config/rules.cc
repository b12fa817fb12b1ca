#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/compile/step/options_enums.h"
#include "engine/plan/config/fields.h"
#include "engine/plan/config/job_from_spec.h"
#include "engine/plan/config/model_spec.h"
#include "engine/strings/messages.h"
#include "engine/strings/printing.h"

namespace shale {
namespace {

void CheckName(const std::string& name, SpecErrors& errors) {
  constexpr size_t kLongest = 128;
  bool good = name.size() <= kLongest && name[0] != '.';
  for (char c : name) good = good && (absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-');
  if (good) return;
  errors.AddRule({"name"}, absl::StrCat("found ", Quoted(name), "; allowed: letters, digits, '.', '_' and '-', up to ",
                                        kLongest, " of them, and no '.' at the start"));
}

void CheckSharding(const proto::ShardingSpec& spec, const ShardingConfig& sharding, SpecErrors& errors) {
  const Strategy strategy = sharding.strategy;
  if (const absl::Status status = CheckCombination(strategy, sharding.accumulation); !status.ok()) {
    errors.AddRule({"sharding.accumulation", "sharding.strategy"}, status.message());
  }
  if (spec.has_shard_ranks() && strategy == Strategy::kDdp) {
    errors.AddRule({"sharding.shard_ranks", "sharding.strategy"},
                   "strategy DDP shards nothing; leave shard_ranks out, or use another strategy");
  }
  if (sharding.shard_ranks > 0 && sharding.ranks > 0 && sharding.ranks % sharding.shard_ranks != 0) {
    int64_t divisor = std::min(sharding.shard_ranks, sharding.ranks);
    while (sharding.ranks % divisor != 0) --divisor;
    errors.AddRule({"sharding.shard_ranks", "sharding.ranks"},
                   absl::StrCat("groups of ", sharding.shard_ranks, " cannot divide ", Plural(sharding.ranks, "rank"),
                                "; use a divisor of ranks, such as ", divisor));
  }
}

void CheckGradientShards(const Job& job, SpecErrors& errors) {
  if (job.precision.gradient_shards == GradientShards::kFloat32) return;
  const ShardingConfig& sharding = job.sharding;
  const int64_t shard = std::max<int64_t>(1, ShardRanks(sharding));
  const Mesh mesh = {.replicate = std::max<int64_t>(1, sharding.ranks / shard), .shard = shard};
  const ShardingConfig good = {.strategy = Strategy::kFullShard, .accumulation = Accumulation::kSharded};
  const auto check = [&](const char* other, Strategy strategy, Accumulation accumulation, const Mesh& of_ranks) {
    const absl::Status status = CheckGradientShards(strategy, accumulation, of_ranks);
    if (!status.ok()) errors.AddRule({"precision.gradient_shards", other}, std::string(status.message()));
  };
  check("sharding.strategy", sharding.strategy, good.accumulation, Mesh{});
  check("sharding.accumulation", good.strategy, sharding.accumulation, Mesh{});
  check("sharding.shard_ranks", good.strategy, good.accumulation, mesh);
}

void CheckReduce(const Job& job, SpecErrors& errors) {
  if (job.precision.reduce == ReducePrecision::kFloat32) return;
  const int64_t shard = std::max<int64_t>(1, ShardRanks(job.sharding));
  const Mesh mesh = {.replicate = std::max<int64_t>(1, job.sharding.ranks / shard), .shard = shard};
  const auto check = [&](const char* other, Strategy strategy, const Mesh& of_ranks) {
    const absl::Status status = CheckReduce(strategy, of_ranks);
    if (!status.ok()) errors.AddRule({"precision.reduce", other}, std::string(status.message()));
  };
  check("sharding.strategy", job.sharding.strategy, Mesh{});
  if (CheckReduce(job.sharding.strategy, Mesh{}).ok()) check("sharding.shard_ranks", Strategy::kFullShard, mesh);
}

void CheckPrecision(const proto::Job& spec, const PrecisionConfig& precision, SpecErrors& errors) {
  if (precision.compute == ComputePrecision::kBFloat16) return;
  if (spec.optimizer().state() == proto::OptimizerSpec::LEAN) {
    errors.AddRule({"optimizer.state", "precision.compute"},
                   "LEAN keeps bf16 weights without masters; use compute BF16, or state FULL");
  }
  if (precision.master == MasterWeights::kSplit) {
    errors.AddRule({"precision.master", "precision.compute"},
                   "SPLIT keeps the low bits of bf16 weights; use compute BF16, or master MASTER_FP32");
  }
  if (spec.precision().master() == proto::PrecisionSpec::NONE) {
    errors.AddRule({"precision.master", "precision.compute"},
                   "NONE rounds bf16 weights stochastically; use compute BF16, or master MASTER_FP32");
  }
}

// Refuses what does not go with dynamic loss scaling.
void CheckLossScaling(const proto::Job& spec, const Job& job, SpecErrors& errors) {
  if (job.precision.compute != ComputePrecision::kFloat16) return;
  const auto refuse = [&](const char* path, const char* why) { errors.AddRule({"precision.compute", path}, why); };
  if (job.optimizer.update == UpdateTime::kInBackward) {
    refuse(
        "optimizer.update",
        "FP16 skips the whole step if any gradient overflows, and IN_BACKWARD updates a unit before the gradients of "
        "others are known; use update AFTER_BACKWARD, or compute BF16");
  }
  if (job.optimizer.clipping != Clipping::kGlobal) {
    refuse("optimizer.clipping",
           "FP16 skips the whole step if any gradient overflows, and this clipping decides for each unit alone; use "
           "clipping GLOBAL, or compute BF16");
  }
  if (job.runtime.cpu_matmuls == CpuMatMuls::kOneDnn) {
    refuse("runtime.cpu_matmuls", "ONEDNN computes no matmuls in fp16; use PACKED or AUTO, or compute BF16 or FP32");
  }
  if (spec.model().has_adapter() || !job.optimizer.train_only.empty()) {
    refuse(spec.model().has_adapter() ? "model.adapter" : "optimizer.train_only[0]",
           "checkpoints do not hold frozen weights in fp16; use compute BF16 or FP32");
  }
}

void CheckOffloadedState(const Job& job, SpecErrors& errors) {
  const StateOffload& offload = job.memory.offload_state;
  const auto refuse = [&](const char* other, const absl::Status& status) {
    if (!status.ok()) errors.AddRule({"memory.offload_state[0]", other}, std::string(status.message()));
  };
  const auto check = [&](const char* other, const StateOffload& part) {
    refuse(other,
           CheckStateOffload(part, job.sharding.strategy, HasStates(job.optimizer), job.precision.has_masters()));
  };
  const absl::Status device = CheckUpdateDevice(job.optimizer.device, offload);
  refuse("optimizer.device", device);
  if (device.ok()) {
    const bool fp32 = job.precision.compute == ComputePrecision::kFloat32;
    check("optimizer.rule", {.moments = offload.moments});
    check(fp32 ? "precision.compute" : "precision.master", {.masters = offload.masters});
  }
  check("sharding.strategy", {.parameters = offload.parameters});
}

// Returns the paths of `field` (unless it is empty), first_layers, last_layers and the layers of each kind of model.
std::vector<std::string> ChoiceOfBlocks(const std::string& field) {
  std::vector<std::string> paths = {"activation_checkpointing.first_layers", "activation_checkpointing.last_layers"};
  if (!field.empty()) paths.insert(paths.begin(), field);
  ForEachModelKind([&](const auto& kind) { paths.push_back(absl::StrCat("model.", kind.kName, ".layers")); });
  return paths;
}

// `choice_is_clear` says whether it is known which blocks are chosen.
void CheckSegments(const proto::ActivationCheckpointingSpec& spec, const ActivationCheckpointingConfig& config,
                   int64_t layers, bool choice_is_clear, SpecErrors& errors) {
  const bool sqrt = config.segments == Segments::kSqrt;
  const std::string name = sqrt ? "segments" : "segment_blocks",
                    field = absl::StrCat("activation_checkpointing.", name);
  if (sqrt && spec.has_segment_blocks()) {
    errors.AddRule({"activation_checkpointing.segment_blocks", field},
                   "segment_blocks and segments are both given; keep one");
  }
  if (config.every_nth > 1) {
    errors.AddRule({field, "activation_checkpointing.every_nth"},
                   absl::StrCat("a segment is a run of consecutive blocks, and every_nth ", config.every_nth,
                                " chooses no two neighbors; leave out every_nth, or ", name));
  }
  if (!choice_is_clear || config.every_nth > 1) return;
  const int64_t longest = config.Chosen(layers).LongestRun();
  if (sqrt && longest < 2) {
    errors.AddRule(ChoiceOfBlocks(field),
                   "a segment needs two consecutive blocks, and no two are chosen; leave segments out");
  }
  if (!sqrt && config.segment_blocks > longest) {
    errors.AddRule(ChoiceOfBlocks(field),
                   absl::StrCat("a segment of ", config.segment_blocks, " blocks is longer than the ", longest,
                                " consecutive blocks that are chosen; give at most ", longest));
  }
}

void CheckCheckpointing(const proto::ActivationCheckpointingSpec& spec, const Job& job, SpecErrors& errors) {
  const ActivationCheckpointingConfig& config = job.activation_checkpointing;
  const bool has_ends = spec.has_first_layers() || spec.has_last_layers();
  if (spec.has_every_nth() && has_ends) {
    errors.AddRule({"activation_checkpointing.every_nth", "activation_checkpointing.first_layers",
                    "activation_checkpointing.last_layers"},
                   "every_nth does not go with first_layers and last_layers; keep one choice of blocks");
  }
  const int64_t chosen = config.first_layers + config.last_layers;
  if (has_ends && chosen == 0) {
    errors.AddRule({"activation_checkpointing.first_layers", "activation_checkpointing.last_layers"},
                   "first_layers and last_layers choose no block; give a number, or leave both out for all blocks");
  }
  const bool has_segments = config.segments == Segments::kSqrt || config.segment_blocks > 1;
  if ((spec.has_every_nth() || has_ends) && config.preset == CheckpointingPreset::kNone && !has_segments) {
    errors.AddRule({"activation_checkpointing.every_nth", "activation_checkpointing.first_layers",
                    "activation_checkpointing.last_layers", "activation_checkpointing.preset"},
                   "preset NONE recomputes nothing, so a choice of blocks has no effect; use another preset, or "
                   "leave every_nth, first_layers and last_layers out");
  }
  const int64_t layers = Layers(job.model);
  if (chosen > layers) {
    errors.AddRule(ChoiceOfBlocks(""), absl::StrCat("first_layers ", config.first_layers, " and last_layers ",
                                                    config.last_layers, " are more than the model's ", layers,
                                                    " layers; choose at most ", layers, " together"));
  }
  const bool is_clear = !(spec.has_every_nth() && has_ends) && !(has_ends && chosen == 0) && chosen <= layers;
  if (has_segments) CheckSegments(spec, config, layers, is_clear, errors);
}

// Refuses moments that are given if neither the job's rule nor that of a group reads them.
void CheckMoments(const proto::OptimizerSpec& spec, const OptimizerConfig& optimizer, SpecErrors& errors) {
  if (spec.moments() == proto::OptimizerSpec::MOMENTS_UNSPECIFIED || ReadsMoments(optimizer)) return;
  std::vector<std::string> readers;
  for (const OptimizerEntry& entry : Optimizers()) {
    if (entry.Reads("moments")) readers.push_back(absl::StrCat(entry.name));
  }
  errors.AddRuleAboutFirst({"optimizer.moments", "optimizer.rule"},
                           absl::StrCat("rule ", EntryOf(optimizer.kind).name, " does not read it",
                                        optimizer.groups.empty() ? "" : ", nor does that of a group", "; choose ",
                                        absl::StrJoin(readers, " or "), ", or leave it out"));
}

void CheckOptimizer(const proto::OptimizerSpec& spec, const OptimizerConfig& optimizer, SpecErrors& errors) {
  CheckMoments(spec, optimizer, errors);
  const UpdateRule rule = MakeOptimizer(optimizer).rule;
  if (const auto* sgd = std::get_if<SgdRule>(&rule); sgd != nullptr && sgd->nesterov && sgd->momentum == 0) {
    errors.AddRule(
        {"optimizer.nesterov", "optimizer.momentum"},
        "Nesterov's update looks ahead along the momentum, and momentum is 0; set momentum, or leave nesterov out");
  }
  if (optimizer.update == UpdateTime::kInBackward) {
    if (optimizer.max_gradient_norm > 0 && optimizer.clipping == Clipping::kGlobal) {
      errors.AddRule({"optimizer.update", "optimizer.clipping", "optimizer.max_gradient_norm"},
                     "IN_BACKWARD updates a unit before the norm of all gradients is known; use clipping PREVIOUS_NORM "
                     "or PER_UNIT, or max_gradient_norm 0 for no clipping");
    }
  }
  const bool in_backward = optimizer.update == UpdateTime::kInBackward;
  if (optimizer.non_finite == NonFinite::kStop && (in_backward || optimizer.clipping != Clipping::kGlobal)) {
    errors.AddRule({in_backward ? "optimizer.update" : "optimizer.clipping", "optimizer.non_finite"},
                   absl::StrCat(in_backward ? "IN_BACKWARD" : ToString(optimizer.clipping),
                                " updates a unit whether or not the gradients of others are finite, so a run cannot "
                                "stop with the parameters of the step before; use non_finite SKIP"));
  }
  if (optimizer.clipping != Clipping::kGlobal && optimizer.max_gradient_norm == 0) {
    errors.AddRule({"optimizer.clipping", "optimizer.max_gradient_norm"},
                   "max_gradient_norm 0 clips nothing; give a norm, or leave clipping out");
  }
  const bool scales = optimizer.scaling != LearningRateScaling::kConstant;
  if (scales && optimizer.base_batch == 0) {
    errors.AddRule({"optimizer.scaling", "optimizer.base_batch"},
                   "scales by global_batch / base_batch; give base_batch, the sequences per step that learning_rate "
                   "is for");
  }
}

// A composed optimizer, such as ADAFACTOR or MUON, needs whole parameters before it updates them.
void CheckComposed(const OptimizerConfig& optimizer, SpecErrors& errors) {
  std::vector<std::pair<std::string, Optimizer>> all = {{"optimizer.", MakeOptimizer(optimizer)}};
  for (const Optimizer& group : MakeGroupOptimizers(optimizer)) {
    all.push_back({absl::StrCat("optimizer.groups[", all.size() - 1, "]."), group});
  }
  for (const auto& [path, one] : all) {
    if (!one.composed()) continue;
    const absl::string_view name = EntryOf(one.kind).name;
    if (optimizer.device == UpdateDevice::kHost) {
      errors.AddRule({"optimizer.device", path + "rule"},
                     absl::StrCat(name, " does not update on the HOST; use SAME, or rule ADAMW_8BIT"));
    }
    if (optimizer.update == UpdateTime::kInBackward) {
      errors.AddRule({"optimizer.update", path + "rule"},
                     absl::StrCat(name, " does not update IN_BACKWARD; use AFTER_BACKWARD, or rule ADAMW_8BIT"));
    }
    if (one.adafactor && one.adafactor->beta1 > 0 && one.adafactor->weight_decay > 0) {
      errors.AddRule({path + "weight_decay", path + "beta1"},
                     "ADAFACTOR has weight decay only without a first moment; set weight_decay 0, or beta1 0");
    }
  }
}

// Refuses a group that would take a factor on Adafactor's own steps for a rate, or a rate for such a factor: they
// differ by some thousand times.
void CheckRatesOfGroups(const OptimizerConfig& optimizer, const std::vector<Optimizer>& optimizers,
                        SpecErrors& errors) {
  const auto has_steps = [](const Optimizer& one) { return one.adafactor && one.adafactor->relative_step; };
  const bool of_job = has_steps(MakeOptimizer(optimizer));
  for (size_t i = 0; i < optimizers.size(); ++i) {
    if (has_steps(optimizers[i]) == of_job || optimizer.groups[i].learning_rate_factor != 1) continue;
    errors.AddRule(
        {absl::StrCat("optimizer.groups[", i, "].learning_rate_factor"), absl::StrCat("optimizer.groups[", i, "]"),
         "optimizer.rule"},
        of_job ? "the learning rate of ADAFACTOR is a factor on its own steps, usually 1, which is no rate for another "
                 "rule; give learning_rate_factor, for example 0.001, or relative_step false"
               : "ADAFACTOR takes the job's learning rate for a factor on its own steps, which is usually 1; give "
                 "learning_rate_factor, for example 1000, or relative_step false");
  }
}

// A group is clipped by its own norm where all gradients are known, and no unit is updated by itself.
void CheckClippingOfGroups(const OptimizerConfig& optimizer, SpecErrors& errors) {
  const bool in_backward = optimizer.update == UpdateTime::kInBackward;
  if (!in_backward && optimizer.clipping == Clipping::kGlobal) return;
  for (size_t i = 0; i < optimizer.groups.size(); ++i) {
    if (!optimizer.groups[i].max_gradient_norm) continue;
    errors.AddRuleAboutFirst(
        {absl::StrCat("optimizer.groups[", i, "].max_gradient_norm"), absl::StrCat("optimizer.groups[", i, "]"),
         in_backward ? "optimizer.update" : "optimizer.clipping"},
        absl::StrCat("the norm of a group is known after backward, and ",
                     in_backward ? "IN_BACKWARD updates a unit before"
                                 : absl::StrCat("clipping ", ToString(optimizer.clipping), " has other norms"),
                     "; leave it out, or use clipping GLOBAL and update AFTER_BACKWARD"));
  }
}

void CheckOptimizerGroups(const OptimizerConfig& optimizer, SpecErrors& errors) {
  for (size_t i = 0; i < optimizer.groups.size(); ++i) {
    const OptimizerGroupConfig& group = optimizer.groups[i];
    const std::string path = absl::StrCat("optimizer.groups[", i, "]");
    if (group.parameters.empty()) {
      errors.AddRule({path}, "names no parameters; give name patterns in parameters, as in parameters: \"*.bias\"");
    }
    const OptimizerEntry& entry = EntryOf(group.kind.value_or(optimizer.kind));
    for (const auto& [name, is_given] : {std::pair{"beta1", group.beta1.has_value()},
                                         {"beta2", group.beta2.has_value()},
                                         {"epsilon", group.epsilon.has_value()},
                                         {"momentum", group.momentum.has_value()},
                                         {"nesterov", group.nesterov.has_value()},
                                         {"newton_schulz_steps", group.newton_schulz_steps.has_value()},
                                         {"rate_adjustment", group.rate_adjustment.has_value()}}) {
      if (!is_given || entry.Reads(name)) continue;
      errors.AddRuleAboutFirst(
          {absl::StrCat(path, ".", name), absl::StrCat(path, ".rule"), "optimizer.rule"},
          absl::StrCat("rule ", entry.name, " does not read it; leave it out, or give the group another rule"));
    }
  }
  CheckClippingOfGroups(optimizer, errors);
  const std::vector<Optimizer> optimizers = MakeGroupOptimizers(optimizer);
  CheckRatesOfGroups(optimizer, optimizers, errors);
  for (size_t i = 0; i < optimizers.size(); ++i) {
    const auto* sgd = std::get_if<SgdRule>(&optimizers[i].rule);
    if (sgd == nullptr || !sgd->nesterov || sgd->momentum != 0) continue;
    const std::string path = absl::StrCat("optimizer.groups[", i, "]");
    const bool is_given = optimizer.groups[i].nesterov.has_value();
    errors.AddRule({absl::StrCat(path, is_given ? ".nesterov" : ".momentum"), path},
                   "Nesterov's update looks ahead along the momentum, and momentum is 0; set momentum, or nesterov: "
                   "false, for the group");
  }
}

void CheckFrozen(const proto::Job& spec, const OptimizerConfig& optimizer, SpecErrors& errors) {
  const bool adapter = spec.model().has_adapter();
  if (adapter && !optimizer.train_only.empty()) {
    errors.AddRule({"optimizer.train_only[0]", "model.adapter"},
                   "a model with adapters trains these and freezes all other parameters; leave train_only or "
                   "adapter out");
  }
  if (optimizer.frozen_weights != Storage::kAsUsed && !adapter && optimizer.train_only.empty()) {
    errors.AddRule({"optimizer.frozen_weights", "optimizer.train_only"},
                   "no parameter is frozen, because all train; name those that train in train_only, give the model "
                   "an adapter, or leave frozen_weights out");
  }
}

void CheckLearningRate(const proto::LearningRateSpec& spec, const Job& job, SpecErrors& errors) {
  const LearningRateConfig& lr_schedule = job.lr_schedule;
  if (spec.has_steps() == spec.has_epochs()) {
    errors.AddRule({"lr_schedule.steps", "lr_schedule.epochs"},
                   spec.has_steps() ? "steps and epochs are both given; keep one"
                                    : "missing; give steps, or epochs, as the length of the run");
  }
  if ((lr_schedule.warmup_steps > 0) + (lr_schedule.warmup_samples > 0) + (lr_schedule.warmup_tokens > 0) > 1) {
    errors.AddRule({"lr_schedule.warmup_steps", "lr_schedule.warmup_samples", "lr_schedule.warmup_tokens"},
                   "more than one of warmup_steps, warmup_samples and warmup_tokens is given; keep one");
  }
  // Uses 128 bits, because each factor is in its range but their product may not fit 64 bits.
  const unsigned __int128 samples = static_cast<unsigned __int128>(lr_schedule.steps) * job.batch.global_batch;
  const struct {
    const char* path;
    int64_t warmup;
    unsigned __int128 run;
  } warmups[] = {
      {"lr_schedule.warmup_steps", lr_schedule.warmup_steps, static_cast<unsigned __int128>(lr_schedule.steps)},
      {"lr_schedule.warmup_samples", lr_schedule.warmup_samples, samples},
      {"lr_schedule.warmup_tokens", lr_schedule.warmup_tokens, samples * job.batch.sequence_length},
  };
  for (const auto& [path, warmup, run] : warmups) {
    if (spec.has_steps() && static_cast<unsigned __int128>(warmup) > run) {
      errors.AddRule({path, "lr_schedule.steps", "batch.global_batch", "batch.sequence_length"},
                     absl::StrCat(path, " is ", warmup, ", longer than the whole run of ", static_cast<uint64_t>(run),
                                  "; shorten the warm-up, or lengthen the run"));
    } else if (spec.has_steps() && lr_schedule.shape == LearningRateShape::kWarmupStableDecay &&
               warmup > (1 - lr_schedule.decay_fraction) * static_cast<double>(run) * (1 + 1e-9)) {
      errors.AddRule(
          {path, "lr_schedule.decay_fraction", "lr_schedule.steps", "batch.global_batch", "batch.sequence_length"},
          absl::StrCat(path, " is ", warmup, ", which reaches into the decay, the last ",
                       NumberText(lr_schedule.decay_fraction), " of the run; shorten one of them"));
    }
  }
}

// Checks how ranks that share a GPU are joined.
void CheckSharedGpus(const RuntimeConfig& runtime, int64_t ranks, SpecErrors& errors) {
  const bool shared = runtime.ranks_per_device > 1 && ranks > 1;
  if (!runtime.nccl_shares_gpus) {
    if (runtime.collectives == CollectivesKind::kNccl && shared) {
      errors.AddRule({"runtime.collectives", "runtime.ranks_per_device"},
                     "NCCL needs a GPU of its own for every rank; use collectives IN_PROCESS, or ranks_per_device 1 "
                     "(tests on too few GPUs: nccl_shares_gpus)");
    }
    return;
  }
  if (!shared) {
    errors.AddRule({"runtime.nccl_shares_gpus", "runtime.ranks_per_device", "sharding.ranks"},
                   "nccl_shares_gpus is for tests in which ranks share a GPU, and here none do; leave it out, or set "
                   "ranks_per_device to the number of ranks that share one");
  }
  if (runtime.collectives == CollectivesKind::kInProcess) {
    errors.AddRule({"runtime.nccl_shares_gpus", "runtime.collectives"},
                   "collectives IN_PROCESS join ranks that share a GPU without NCCL; leave one of them out");
  }
  if (runtime.nccl_windows) {
    errors.AddRule({"runtime.nccl_windows", "runtime.nccl_shares_gpus"},
                   "NCCL makes no windows between ranks that share a GPU; leave one of them out");
  }
}

void CheckRuntime(const proto::Job& spec, const Job& job, SpecErrors& errors) {
  const proto::RuntimeSpec& given = spec.runtime();
  const RuntimeConfig& runtime = job.runtime;
  if (runtime.device == DeviceType::kCpu) {
    if (job.optimizer.device == UpdateDevice::kHost) {
      errors.AddRule({"optimizer.device", "runtime.device"},
                     "on device CPU the state is in host memory and the update runs there already; use SAME, or device "
                     "CUDA");
    }
    return;
  }
  if (runtime.ops == OpsKind::kReference) {
    errors.AddRule({"runtime.ops", "runtime.device"}, "the REFERENCE ops run on device CPU only; use FAST");
  }
  CheckSharedGpus(runtime, job.sharding.ranks, errors);
  if (runtime.nccl_windows && job.sharding.ranks == 1) {
    errors.AddRule(
        {"runtime.nccl_windows", "sharding.ranks"},
        "nccl_windows has no effect with one rank, which has no collectives; leave it out, or run more ranks");
  } else if (runtime.nccl_windows && !runtime.nccl_shares_gpus && runtime.collectives != CollectivesKind::kNccl &&
             (runtime.collectives == CollectivesKind::kInProcess || runtime.ranks_per_device > 1)) {
    errors.AddRuleAboutFirst(
        {"runtime.nccl_windows", "runtime.collectives", "runtime.ranks_per_device"},
        "collectives are IN_PROCESS here and have no windows; leave it out, or run one rank on each GPU with "
        "collectives NCCL");
  }
  const bool by_cudnn = runtime.cudnn_attention.value_or(true);
  if (!runtime.deterministic_attention && !by_cudnn) {
    errors.AddRuleAboutFirst(
        {"runtime.deterministic_attention", "runtime.cudnn_attention"},
        "the engine's own kernels are always deterministic; leave it out, or let cuDNN compute attention");
  }
  if (given.has_attention_workspace_bytes() && !by_cudnn) {
    errors.AddRuleAboutFirst(
        {"runtime.attention_workspace_bytes", "runtime.cudnn_attention"},
        "the engine's own kernels need no workspace; leave it out, or let cuDNN compute attention");
  }
  const bool graphs = runtime.graphs.value_or(false);
  if (graphs && job.sharding.ranks > 1) {
    errors.AddRule({"runtime.graphs", "sharding.ranks"},
                   absl::StrCat("graphs need a single rank, and there are ", job.sharding.ranks,
                                "; leave graphs out, or run one rank"));
  }
  if (graphs && runtime.synchronous) {
    errors.AddRule({"runtime.graphs", "runtime.synchronous"},
                   "a graph runs as a whole, and synchronous runs one instruction at a time; leave one of them out");
  }
}

}  // namespace

void CheckRules(const proto::Job& spec, const Job& job, SpecErrors* errors) {
  CheckName(job.name, *errors);
  CheckConditions(spec, SpecOf(job), errors);
  CheckModelRules(spec.model(), job.model, job.batch.sequence_length, errors);
  CheckDataRules(job, errors);
  CheckSharding(spec.sharding(), job.sharding, *errors);
  CheckPrecision(spec, job.precision, *errors);
  CheckGradientShards(job, *errors);
  CheckReduce(job, *errors);
  CheckLossScaling(spec, job, *errors);
  CheckOffloadedState(job, *errors);
  CheckCheckpointing(spec.activation_checkpointing(), job, *errors);
  CheckOptimizer(spec.optimizer(), job.optimizer, *errors);
  CheckOptimizerGroups(job.optimizer, *errors);
  CheckComposed(job.optimizer, *errors);
  CheckFrozen(spec, job.optimizer, *errors);
  CheckLearningRate(spec.lr_schedule(), job, *errors);
  CheckRuntime(spec, job, *errors);
  CheckSizes(job, errors);
}

}  // namespace shale
