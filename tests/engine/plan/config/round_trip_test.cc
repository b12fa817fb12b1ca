// Tests the defaults, and that the text of a resolved job parses back to an equal job.
#include "engine/api/job.h"
#include "engine/compile/optimizer/optimizer.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "proto/job.pb.h"
#include "tests/engine/plan/config/specs.h"

namespace shale {
namespace {

Job Parse(const std::string& text, const std::vector<std::string>& overrides = {}) {
  const absl::StatusOr<Job> job = ParseJobText(text, "job.textproto", overrides);
  EXPECT_TRUE(job.ok()) << job.status() << "\n" << text;
  return job.ok() ? *job : Job();
}

void ExpectRoundTrip(const Job& job) {
  EXPECT_EQ(Parse(ResolvedJobText(job)), job) << ResolvedJobText(job);
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job);
}

TEST(RoundTrip, AResolvedJobParsesBackEqual) {
  for (const char* text : {kDecoderJob, kMlpJob, kFullJob}) ExpectRoundTrip(Parse(text));
}

TEST(RoundTrip, EveryOptimizerParsesByItsName) {
  ASSERT_EQ(proto::OptimizerSpec::Rule_descriptor()->value_count() - 1, Optimizers().size());
  for (const OptimizerEntry& entry : Optimizers()) {
    const std::string name(entry.name.data(), entry.name.size());
    const Job job = Parse(kDecoderJob, {"optimizer.rule=" + name});
    EXPECT_EQ(job.optimizer.kind, entry.kind) << name;
    ExpectRoundTrip(job);
  }
}

// Every hyper-parameter that an optimizer reads is parsed, printed, and reaches its rule or the bias correction.
TEST(RoundTrip, EveryHyperparameterReachesTheRule) {
  for (const OptimizerEntry& entry : Optimizers()) {
    const std::string rule = "optimizer.rule=" + std::string(entry.name.data(), entry.name.size());
    const Job usual = Parse(kDecoderJob, {rule});
    std::vector<std::string> settings = {"weight_decay=0.015625"};
    for (const absl::string_view field : entry.fields) {
      const bool is_switch = field == "relative_step" || field == "scale_parameter";
      const std::string value = field == "nesterov"              ? (entry.defaults.nesterov ? "=false" : "=true")
                                : field == "moments"             ? "=BF16"
                                : is_switch                      ? "=false"
                                : field == "newton_schulz_steps" ? "=7"
                                : field == "rate_adjustment"     ? "=SPECTRAL"
                                                                 : "=0.015625";
      settings.push_back(std::string(field.data(), field.size()) + value);
    }
    for (const std::string& setting : settings) {
      const Job job = Parse(kDecoderJob, {rule, "optimizer." + setting});
      ExpectRoundTrip(job);
      const Optimizer changed = MakeOptimizer(job.optimizer), before = MakeOptimizer(usual.optimizer);
      const bool same_states = setting == "moments=BF16" && StatesOf(before.rule).empty();
      EXPECT_EQ(changed.rule == before.rule && changed.adafactor == before.adafactor && changed.muon == before.muon &&
                    !same_states,
                false)
          << rule << " " << setting;
    }
  }
}

TEST(RoundTrip, EveryFamilyAndChoiceParsesBackEqual) {
  for (const char* override : {"model.decoder.family=GPT2",
                               "model.decoder.family=QWEN2",
                               "model.decoder.family=QWEN3",
                               "model.decoder.family=MISTRAL",
                               "model.decoder.family=FALCON",
                               "sharding.strategy=DDP",
                               "sharding.strategy=ZERO1",
                               "sharding.strategy=ZERO2",
                               "lr_schedule.shape=CONSTANT",
                               "lr_schedule.shape=LINEAR",
                               "lr_schedule.shape=WARMUP_STABLE_DECAY",
                               "lr_schedule.warmup_steps=3",
                               "lr_schedule.warmup_tokens=3",
                               "data.evaluation_fraction=0.1",
                               "data.mix=[\"250 /a b\", \"1 /c\"]",
                               "data={evaluation_path: \"\" evaluation_sources: [\"a /b c\", \"d-1 /e\"]}",
                               "optimizer.learning_rate=0.1000000000000000055",
                               "optimizer.weight_decay=-0.0",
                               "optimizer.learning_rate=1.7976931348623157e-29",
                               "optimizer.rule=SGD",
                               "optimizer={rule: SGD momentum: 0.5 nesterov: true}",
                               "optimizer.rule=ADAMW_8BIT",
                               "optimizer.groups={parameters: \"a*\" parameters: \"*b\" rule: SGD nesterov: true}",
                               "optimizer={groups {parameters: \"a\" beta1: 0} groups {parameters: \"b\" rule: LION}}",
                               "optimizer.groups={parameters: \"x\" learning_rate_factor: 0.1 weight_decay: 0}",
                               "optimizer.groups={parameters: \"x\" max_gradient_norm: 0}",
                               "activation_checkpointing.segments=SQRT",
                               "activation_checkpointing={segment_blocks: 3 first_layers: 3}",
                               "runtime.ops=REFERENCE",
                               "runtime.cpu_matmuls=ONEDNN",
                               "runtime.cpu_matmuls=PACKED",
                               "runtime={device: CUDA graphs: true}",
                               "runtime.generate=true",
                               "runtime.search=[\"batch.micro_batch\", \"sharding.strategy\"]",
                               "model.adapter.rank=3",
                               "model.adapter={rank: 8 alpha: 12.5 rank_stabilized: true folder: \"/peft\" "
                               "targets: \"q_proj\" targets: \"blocks.3.*\"}",
                               "name=b"}) {
    SCOPED_TRACE(override);
    ExpectRoundTrip(Parse(kDecoderJob, {override}));
  }
  ExpectRoundTrip(Parse(kDecoderJob, {"runtime.device=CUDA", "memory.offload_state=[MOMENTS, PARAMETERS]"}));
  ExpectRoundTrip(Parse(kDecoderJob, {"runtime={device: CUDA nccl_windows: true}", "sharding.ranks=2"}));
  ExpectRoundTrip(
      Parse(kDecoderJob, {"runtime={device: CUDA ranks_per_device: 2 nccl_shares_gpus: true}", "sharding.ranks=2"}));
  ExpectRoundTrip(Parse(kDecoderJob, {"runtime={device: CUDA deterministic_attention: false}"}));
  ExpectRoundTrip(Parse(kDecoderJob, {"runtime={device: CUDA attention_workspace_bytes: 0}"}));
}

TEST(RoundTrip, AdaptersHaveDefaults) {
  const auto adapter = [](const std::vector<std::string>& overrides) {
    return *std::get<DecoderConfig>(Parse(kDecoderJob, overrides).model).adapter;
  };
  const AdapterConfig plain = adapter({"model.adapter.rank=8"});
  EXPECT_EQ(plain, (AdapterConfig{.rank = 8, .alpha = 8, .targets = {"*"}}));
  EXPECT_EQ(plain.Scale(), 1);
  EXPECT_EQ(adapter({"model.adapter={rank: 16 alpha: 32}"}).Scale(), 2);
  EXPECT_EQ(adapter({"model.adapter={rank: 16 alpha: 32 rank_stabilized: true}"}).Scale(), 8);
}

TEST(RoundTrip, EveryFieldOfAFullJobSurvives) {
  const Job job = Parse(kFullJob);
  EXPECT_EQ(job.data.seed, 18446744073709551615u);
  EXPECT_EQ(job.activation_checkpointing.recompute[1], "tab \"q\" \\ back");
  EXPECT_EQ(job.memory.offload, std::vector<std::string>{"blocks.*.attention.*"});
  EXPECT_EQ(job.memory.offload_state, (StateOffload{.parameters = true}));
  EXPECT_EQ(job.optimizer.device, UpdateDevice::kHost);
  EXPECT_EQ(job.precision.gradient_shards, GradientShards::kBFloat16);
  EXPECT_TRUE(job.precision.fp32_logits);
  EXPECT_EQ(job.precision.matmuls, MatMulPrecision::kFloat8);
  EXPECT_EQ(job.precision.fp8_gradients, Float8Gradients::kE4M3);
  EXPECT_EQ(job.precision.fp8_scaling, Float8Scaling::kBlockwise);
  EXPECT_EQ(job.telemetry.run_folder, "/tmp/r\xc3\xa4n");
  EXPECT_EQ(job.lr_schedule.decay_fraction, 0.30000000000000004);
  const auto& decoder = std::get<DecoderConfig>(job.model);
  EXPECT_EQ(decoder.norm, NormKind::kRmsNorm);
  EXPECT_EQ(decoder.activation, Activation::kGeluTanh);
  EXPECT_EQ(decoder.rope_theta, 12345.678901234567);
  EXPECT_FALSE(decoder.tied_head);
  EXPECT_EQ(job.sharding.prefetch, 0);
  EXPECT_EQ(job.sharding.shard_ranks, 3);
  EXPECT_EQ(ShardRanks(job.sharding), 3);
  EXPECT_FALSE(job.sharding.reshard_after_forward);
  EXPECT_EQ(job.runtime.device, DeviceType::kCuda);
  EXPECT_EQ(job.runtime.ranks_per_device, 4);
  EXPECT_EQ(job.runtime.collectives, CollectivesKind::kInProcess);
  EXPECT_EQ(job.runtime.tuning_table, "/tuning");
  EXPECT_EQ(job.runtime.cudnn_attention, false);
}

TEST(RoundTrip, SegmentsSayHowManyBlocksTheyHave) {
  EXPECT_EQ(SegmentBlocks(Parse(kDecoderJob)), 1);
  EXPECT_EQ(SegmentBlocks(Parse(kFullJob)), 2);
  const std::string sqrt = "activation_checkpointing.segments=SQRT";
  EXPECT_EQ(SegmentBlocks(Parse(kDecoderJob, {sqrt})), 2);
  EXPECT_EQ(SegmentBlocks(Parse(kDecoderJob, {sqrt, "model.decoder.layers=126"})), 11);
  EXPECT_EQ(SegmentBlocks(Parse(kMlpJob, {sqrt, "model.mlp.layers=9"})), 3);
}

TEST(RoundTrip, BinaryAndTextAreTheSameJob) {
  proto::Job spec;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(kFullJob, &spec));
  const absl::StatusOr<Job> binary = ParseJobBinary(spec.SerializeAsString(), "job.binpb");
  ASSERT_TRUE(binary.ok()) << binary.status();
  EXPECT_EQ(*binary, Parse(kFullJob));
}

TEST(Validate, ReportsAJobThatWasChangedIntoAContradiction) {
  Job job = Parse(kDecoderJob);
  std::get<DecoderConfig>(job.model).vocabulary = 256;
  EXPECT_TRUE(ValidateJob(job).ok());
  std::get<DecoderConfig>(job.model).kv_heads = 3;
  job.optimizer.beta1 = 2;
  const std::string message = ErrorOf(ValidateJob(job));
  EXPECT_NE(message.find("heads 4 is not a multiple of kv_heads 3; try kv_heads 2 or 4"), std::string::npos) << message;
  EXPECT_NE(message.find("optimizer.beta1: found 2; allowed: 0 to 0.999999"), std::string::npos) << message;
}

TEST(RoundTrip, KeepsTheWeightsOfAProgramsOwnData) {
  const Job job = Parse(kDecoderJob, {"data.path=", "data.target_weights=OVER_WEIGHTS"});
  EXPECT_EQ(job.data.target_weights, TargetWeights::kOverWeights);
  const absl::StatusOr<Job> again = ParseJobText(ResolvedJobText(job), "again");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, job);
}

TEST(RoundTrip, KeepsThePackingOfDocuments) {
  const Job job = Parse(kDecoderJob, {"data.packing=PACK", "data.document_begin_token=0", "data.long_documents=DROP"});
  EXPECT_EQ(job.data.packing, Packing::kPack);
  EXPECT_EQ(job.data.document_begin_token, 0);
  EXPECT_EQ(job.data.long_documents, LongDocuments::kDrop);
  const absl::StatusOr<Job> again = ParseJobText(ResolvedJobText(job), "again");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, job);
}

TEST(Defaults, AreThoseTheSpecDocuments) {
  const Job job = Parse(kDecoderJob);
  DecoderConfig llama;
  llama.width = 64;
  llama.layers = 4;
  llama.heads = llama.kv_heads = 4;
  llama.head_width = 16;
  llama.hidden = 192;  // 8/3 x 64 = 170.7, rounded up to a multiple of 64.
  llama.max_positions = 32;
  EXPECT_EQ(std::get<DecoderConfig>(job.model), llama);
  EXPECT_EQ(job.telemetry.run_folder, "runs/shale");
  Job expected;
  expected.model = llama;
  expected.data.path = "/text";
  expected.batch = {.global_batch = 8, .micro_batch = 1, .sequence_length = 32};
  expected.lr_schedule.steps = 10;
  expected.telemetry.run_folder = "runs/shale";
  EXPECT_EQ(job, expected);
}

TEST(LeanState, IsAPresetThatExplicitPartsOverrule) {
  const auto parsed = [](std::vector<std::string> overrides) {
    overrides.push_back("precision.compute=BF16");
    absl::StatusOr<Job> job = ParseJobText(kDecoderJob, "job.textproto", overrides);
    EXPECT_TRUE(job.ok()) << job.status();
    return job.ok() ? *job : Job();
  };
  const Job full = parsed({"optimizer.state=FULL"}), lean = parsed({"optimizer.state=LEAN"});
  EXPECT_EQ(full, parsed({}));
  EXPECT_EQ(full.precision.master, MasterWeights::kFloat32);
  EXPECT_EQ(full.optimizer.moments, Moments::kFloat32);
  EXPECT_EQ(lean.precision.master, MasterWeights::kNone);
  EXPECT_EQ(lean.optimizer.moments, Moments::kBFloat16);
  const Job with_split = parsed({"optimizer.state=LEAN", "precision.master=SPLIT"});
  EXPECT_EQ(with_split.precision.master, MasterWeights::kSplit);
  EXPECT_EQ(with_split.optimizer.moments, Moments::kBFloat16);
  const Job with_moments = parsed({"optimizer.state=LEAN", "optimizer.moments=FP32"});
  EXPECT_EQ(with_moments.precision.master, MasterWeights::kNone);
  EXPECT_EQ(with_moments.optimizer.moments, Moments::kFloat32);
  const Job quantized = parsed({"optimizer.state=LEAN", "optimizer.rule=ADAMW_8BIT"});
  EXPECT_EQ(quantized.precision.master, MasterWeights::kNone);
  EXPECT_EQ(quantized.optimizer.moments, Moments::kFloat32);
  // The moments that count are those of any group, whatever the job's own rule is.
  const Job grouped = parsed(
      {"optimizer.state=LEAN", "optimizer.rule=ADAMW_8BIT", "optimizer.groups={parameters: \"head*\" rule: LION}"});
  EXPECT_EQ(grouped.optimizer.moments, Moments::kBFloat16);
  ExpectRoundTrip(grouped);
}

DecoderConfig Family(const std::string& family) {
  return std::get<DecoderConfig>(Parse(kDecoderJob, {"model.decoder.family=" + family}).model);
}

TEST(Defaults, EachFamilyIsItsShape) {
  const DecoderConfig llama = Family("LLAMA");
  DecoderConfig expected = llama;
  expected.qkv_bias = true;
  expected.norm_epsilon = 1e-6;
  EXPECT_EQ(Family("QWEN2"), expected);
  expected.qkv_bias = false;
  expected.qk_norm = true;
  EXPECT_EQ(Family("QWEN3"), expected);
  EXPECT_EQ(Family("MISTRAL"), llama);

  expected = llama;
  expected.norm = NormKind::kLayerNorm;
  expected.position = PositionKind::kLearned;
  expected.activation = Activation::kGeluTanh;
  expected.hidden = 256;
  expected.tied_head = expected.qkv_bias = expected.linear_bias = true;
  EXPECT_EQ(Family("GPT2"), expected);

  expected.position = PositionKind::kRotary;
  expected.activation = Activation::kGeluErf;
  expected.qkv_bias = expected.linear_bias = false;
  expected.parallel_block = true;
  expected.kv_heads = 1;
  EXPECT_EQ(Family("FALCON"), expected);
}

TEST(ModelText, IsABareModel) {
  const absl::StatusOr<ModelConfig> model = ParseModelText("decoder { width: 64 layers: 4 heads: 4 }", 32);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(*model, Parse(kDecoderJob).model);
  EXPECT_EQ(ErrorOf(ParseModelText("decoder { width: 64 layers: 4 heds: 4 }", 32, "tiny.textproto").status()),
            "tiny.textproto:1:31: model.decoder.heds: no such field; allowed: " +
                FieldNames(*proto::DecoderSpec::descriptor()) + "; did you mean heads?");
  EXPECT_EQ(ErrorOf(ParseModelText("mlp { embedding: 1 hidden: 0 }", 32).status()),
            "model:1:20: model.mlp.hidden: found 0; allowed: 1 to 67108864");
  EXPECT_EQ(ErrorOf(ParseModelText("", 32).status()),
            "model: model: missing; give decoder { ... }, mlp { ... } or hf_folder");
}

TEST(Graphs, RunWhereNothingSpeaksAgainstThem) {
  const auto uses = [](std::vector<std::string> settings) {
    settings.insert(settings.begin(), {"runtime.device=CUDA", "sharding.ranks=1"});
    return UsesGraphs(Parse(kDecoderJob, settings));
  };
  EXPECT_TRUE(uses({}));
  for (const char* setting : {"runtime.graphs=false", "runtime.device=CPU", "sharding.ranks=2",
                              "runtime.synchronous=true", "sharding.accumulation=LAYERED", "memory.offload=[\"*\"]",
                              "memory.offload_state=[MOMENTS]", "optimizer.device=HOST"}) {
    EXPECT_FALSE(uses({setting})) << setting;
  }
  EXPECT_TRUE(uses({"memory.offload=[\"*\"]", "runtime.graphs=true"}));
  // A job that says no more than what holds anyway is a job on any device.
  EXPECT_FALSE(uses({"runtime.device=CPU", "runtime.graphs=false"}));
}

TEST(AccumulationSteps, CoverTheGlobalBatch) {
  EXPECT_EQ(AccumulationSteps({.global_batch = 8, .micro_batch = 2}, 2), 2);
  EXPECT_EQ(AccumulationSteps({.global_batch = 9, .micro_batch = 2}, 2), 3);
  EXPECT_EQ(AccumulationSteps({.global_batch = 1, .micro_batch = 4}, 8), 1);
}

}  // namespace
}  // namespace shale
