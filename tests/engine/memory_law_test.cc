// Measured memory equals the plan, and instructions write only the bytes that they declare.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/compile/model/adapter.h"
#include "engine/compile/program/live_bytes.h"
#include "engine/compile/step/options_enums.h"
#include "tests/engine/arena_checker.h"
#include "tests/engine/example_models.h"
#include "tests/engine/job_harness.h"
#include "tests/engine/tested_backend.h"

namespace shale::testing {
namespace {

using Random = std::mt19937_64;

int64_t Pick(Random& random, int64_t n) { return static_cast<int64_t>(random() % n); }

const OptimizerEntry& PickOptimizer(Random& random) { return Optimizers()[Pick(random, std::ssize(Optimizers()))]; }

// Draws strategy, accumulation and mesh, and when parameters are gathered.
void DrawSharding(Random& random, StepOptions& step) {
  do {
    step.strategy = static_cast<Strategy>(Pick(random, 4));
    step.accumulation = static_cast<Accumulation>(1 + Pick(random, 3));
  } while (!CheckCombination(step.strategy, step.accumulation).ok());
  step.mesh = {.shard = 1 + Pick(random, 4)};
  if (step.strategy != Strategy::kDdp && Pick(random, 3) == 0) {
    step.mesh = {.replicate = 2 + Pick(random, 2), .shard = 1 + Pick(random, 3)};
  }
  step.prefetch = Pick(random, 4);
  step.reshard_after_forward = Pick(random, 4) != 0;
}

void DrawActivations(Random& random, ActivationOptions& activations) {
  activations.preset = static_cast<CheckpointingPreset>(Pick(random, 6));
  if (Pick(random, 3) == 0) activations.every_nth = 2;
  if (Pick(random, 4) == 0) activations.first_layers = 1;
  if (Pick(random, 2) == 0) activations.segment_blocks = 1 + Pick(random, 4);
  if (Pick(random, 3) == 0) activations.offload = {Pick(random, 2) ? "*" : "blocks.*.attention*"};
}

// Draws the compute dtype, the masters, the optimizer, and which state is offloaded.
void DrawOptimizer(Random& random, RunOptions& options) {
  StepOptions& step = options.step;
  if (Pick(random, 2) == 0) {
    options.dtype = DType::kBFloat16;
    step.master = static_cast<MasterWeights>(Pick(random, 3));
  }
  if (Pick(random, 2) == 0) {
    const OptimizerEntry& entry = PickOptimizer(random);
    Hyperparameters h = entry.defaults;
    if (Pick(random, 2) == 0) h.moments = DType::kBFloat16;  // Some optimizers do not read it.
    step.optimizer = MakeOptimizer(entry.kind, h);
  }
  if (Pick(random, 2) == 0) {
    const bool has_masters = options.dtype != DType::kFloat32 && step.master != MasterWeights::kNone;
    step.offload_state = {.moments = Pick(random, 2) && step.has_states(),
                          .masters = Pick(random, 2) && has_masters,
                          .parameters = Pick(random, 2) && step.strategy == Strategy::kFullShard};
  }
}

// Draws the dtypes in which gradients are held and reduced.
void DrawGradientDTypes(Random& random, StepOptions& step) {
  if (Pick(random, 2) && CheckGradientShards(step.strategy, step.accumulation, step.mesh).ok()) {
    step.gradient_shards = DType::kBFloat16;
  }
  if (Pick(random, 2) && CheckReduce(step.strategy, step.mesh).ok()) {
    step.reduce = DType::kBFloat16;
    step.sent_part_bytes = Pick(random, 2) ? 1 : 4096;
  }
}

// Draws where and when parameters are updated, clipping, the scaling of the loss, and what computes matmuls.
void DrawUpdate(Random& random, RunOptions& options) {
  StepOptions& step = options.step;
  if (Pick(random, 5) == 0) {
    step.update_device = UpdateDevice::kHost;
    step.offload_state.moments = step.offload_state.masters = false;  // They are on the host anyway.
  }
  options.reads_gradients = Pick(random, 2);
  options.cpu_matmuls = static_cast<CpuMatMuls>(1 + Pick(random, 2));
  if (Pick(random, 3) == 0) step.update = UpdateTime::kInBackward;
  if (step.composed()) {  // It is refused there.
    step.update = UpdateTime::kAfterBackward;
    step.update_device = UpdateDevice::kSame;
  }
  if (Pick(random, 2) == 0) step.clipping = static_cast<Clipping>(1 + Pick(random, 2));
  const bool can_scale = options.dtype == DType::kBFloat16 && step.master == MasterWeights::kFloat32 &&
                         step.update == UpdateTime::kAfterBackward && step.clipping == Clipping::kGlobal;
  if (can_scale && Pick(random, 3) != 0) {
    options.dtype = DType::kFloat16;
    step.loss_scaling = LossScaling{.init_scale = Pick(random, 2) ? 65536.0 : 1e12};
  }
}

const Example& DrawExample(Random& random, RunOptions& options) {
  const Example& example = Examples()[Pick(random, std::ssize(Examples()))];
  CustomModel model = example.model(1 + Pick(random, 4));
  model.vocabulary = example.vocabulary;
  options.model = model;
  if (Pick(random, 3) == 0) options.train_only = {"*norm.weight"};
  options.frozen_weights = static_cast<Storage>(Pick(random, 3));
  return example;
}

DecoderConfig DrawDecoder(Random& random) {
  DecoderConfig c = SmallDecoder();
  c.layers = 1 + Pick(random, 5);
  c.tied_head = Pick(random, 2);
  c.qk_norm = Pick(random, 3) == 0;
  c.qkv_bias = Pick(random, 2);
  c.linear_bias = Pick(random, 3) == 0;
  if (Pick(random, 2)) c.norm = NormKind::kLayerNorm;
  if (Pick(random, 3) == 0) c.position = PositionKind::kLearned;
  if (Pick(random, 3) == 0) c.activation = Activation::kGeluTanh;
  c.parallel_block = Pick(random, 4) == 0;
  c.parallel_norms = c.parallel_block && Pick(random, 2);
  c.attention_window = Pick(random, 3) == 0 ? 3 : 0;
  if (Pick(random, 3) == 0) {
    static const std::string kPatterns[] = {"WF", "F", "FWW"};
    c.attention_window = 3;
    c.layer_pattern = kPatterns[Pick(random, std::ssize(kPatterns))];
    c.window_rope_theta = Pick(random, 2) ? 100 : 0;
    c.activation = Activation::kGeGlu;
    c.post_norms = Pick(random, 2);
    c.norm_adds_one = c.norm == NormKind::kRmsNorm && Pick(random, 2);
    c.scaled_embedding = Pick(random, 2);
    c.attention_cap = Pick(random, 2) ? 0.5 : 0;
    c.logit_cap = Pick(random, 2) ? 2 : 0;
  }
  static const std::vector<std::string> kTargets[] = {{"*"}, {"v_proj", "query_key_value"}, {"blocks.0.ffn.*"}};
  if (Pick(random, 4) == 0) {
    c.adapter = AdapterConfig{.rank = 1 + Pick(random, 4),
                              .alpha = 2,
                              .rank_stabilized = Pick(random, 2) != 0,
                              .targets = kTargets[Pick(random, std::ssize(kTargets))]};
    if (AdapterParameterCount(c) == 0) c.adapter->targets = {"*"};
  }
  return c;
}

// Draws which parameters of a decoder train, how frozen ones are stored, and groups of the optimizer.
void DrawWhatTrains(Random& random, bool has_adapter, RunOptions& options) {
  static const std::vector<std::string> kTrainOnly[] = {
      {"blocks.0.*"}, {"*.weight"}, {"*norm*", "embedding*"}, {"blocks.*.attention.*"}, {"final_norm.weight"}};
  StepOptions& step = options.step;
  if (!has_adapter && Pick(random, 3) == 0) options.train_only = kTrainOnly[Pick(random, std::ssize(kTrainOnly))];
  options.frozen_weights = static_cast<Storage>(Pick(random, 3));
  if (!has_adapter && options.train_only.empty() && Pick(random, 2) == 0) {
    for (const char* pattern : {"*norm.weight", "blocks.0.*"}) {
      const OptimizerEntry& entry = PickOptimizer(random);
      const bool goes = step.update == UpdateTime::kAfterBackward && step.update_device == UpdateDevice::kSame;
      if (entry.composed && !goes) break;
      step.optimizer_groups.push_back(MakeOptimizer(entry.kind, entry.defaults));
      options.optimizer_groups.push_back({pattern});
    }
  }
}

// Returns a random valid job. Strategy, accumulation, mesh, activation checkpointing, optimizer, moments, clipping,
// update time, model, dtype, masters, dtype of gradient shards, offloaded state, K, keep_gradients, the weights of
// targets, adapters, what trains, how frozen weights are stored and what computes matmuls vary. `example` becomes the
// example whose model the job has, or null.
RunOptions RandomJob(Random& random, const Example** example) {
  *example = nullptr;
  RunOptions options;
  DrawSharding(random, options.step);
  DrawActivations(random, options.step.activations);
  DrawOptimizer(random, options);
  DrawGradientDTypes(random, options.step);
  DrawUpdate(random, options);
  options.micro_batch = 1 + Pick(random, 3);
  options.loss_chunk_tokens = 1 + Pick(random, 30);
  options.target_weights = static_cast<TargetWeights>(Pick(random, 3));
  if (Pick(random, 6) == 0) {
    options.model = SmallMlp();
    return options;
  }
  if (Pick(random, 4) == 0) {
    *example = &DrawExample(random, options);
    return options;
  }
  const DecoderConfig decoder = DrawDecoder(random);
  options.model = decoder;
  options.position_ids = Pick(random, 3) == 0;
  DrawWhatTrains(random, decoder.adapter.has_value(), options);
  return options;
}

// Gives every third job of a decoder that computes in 16 bits matmuls in fp8, and sizes that these need.
void TakeFloat8(int seed, RunOptions& options) {
  auto* decoder = std::get_if<DecoderConfig>(&options.model);
  if (decoder == nullptr || options.dtype == DType::kFloat32 || seed % 3 != 0) return;
  const DecoderConfig sizes = Float8Decoder();
  decoder->width = sizes.width;
  decoder->head_width = sizes.head_width;
  decoder->hidden = sizes.hidden;
  options.float8_gradients = seed % 2 == 0 ? DType::kFloat8E5M2 : DType::kFloat8E4M3;
  options.float8_blockwise = seed / 3 % 2 == 0;
}

// Returns data for a random job, of at most `most` sequences.
Tokens RandomData(const Example* example, const RunOptions& options, uint64_t most, Random& random, int seed) {
  const auto sequences = static_cast<int64_t>(1 + random() % most);
  if (example != nullptr) return example->data(sequences, 9);
  return RandomTokens(sequences, options.float8_gradients ? kFloat8Length : 9, 19, seed);
}

std::string Describe(const RunOptions& o, int seed) {
  return absl::StrCat(
      "seed ", seed, ": ", Description(o.model), " ", ToString(o.step.strategy), " ", ToString(o.step.accumulation),
      " ", ToString(o.step.activations.preset), " in segments of ", o.step.activations.segment_blocks,
      o.step.activations.offload.empty() ? "" : ", offloaded", " R=", o.step.mesh.replicate, " S=", o.step.mesh.shard,
      " B=", o.micro_batch, " ", ToString(o.dtype), " ", ToString(o.step.master), " ",
      EntryOf(o.step.optimizer.kind).name, HasBFloat16States(o.step.optimizer.rule) ? " in bf16 " : " ",
      ToString(o.step.update), " on ", ToString(o.step.update_device), " gradients in ",
      ToString(o.step.gradient_shards),
      o.step.reduce == DType::kFloat32 ? "" : absl::StrCat(" sent in parts of ", o.step.sent_part_bytes),
      " on host: ", ToString(o.step.offload_state), ", matmuls by ", ToString(o.cpu_matmuls), ", target weights ",
      static_cast<int>(o.target_weights), o.position_ids ? ", packed documents" : "",
      o.train_only.empty() ? "" : absl::StrCat(", trains only ", absl::StrJoin(o.train_only, ", ")),
      ", what is frozen is stored ", ToString(o.frozen_weights), o.fp32_logits ? ", logits in fp32" : "",
      o.float8_gradients ? absl::StrCat(o.float8_blockwise ? ", blockwise" : "", ", matmuls in fp8 and ",
                                        ToString(*o.float8_gradients))
                         : "",
      absl::StrJoin(o.step.optimizer_groups, "", [](std::string* out, const Optimizer& group) {
        absl::StrAppend(out, ", a group by ", EntryOf(group.kind).name);
      }));
}

std::vector<std::string> FrozenParameters(const RunResult& result) {
  std::vector<std::string> names;
  for (const GroupState& g : result.step.state.groups) {
    if (!g.frozen) continue;
    for (const ShardLayout::PlacedParameter& parameter : g.layout().parameters()) names.push_back(parameter.name);
  }
  return names;
}

// 400 random jobs in all: 380 on the CPU, and 20 others on the CUDA stand-ins, where a job takes fifty times as long.
TEST(MemoryLaws, MeasuredPeakEqualsThePlanToTheByteAndFrozenWeightsKeepTheirBits) {
  const int first = TestsEveryCombination() ? 0 : 380, last = TestsEveryCombination() ? 380 : 400;
  for (int seed = first; seed < last; ++seed) {
    Random random(seed);
    const Example* example;
    RunOptions options = RandomJob(random, &example);
    // Weights in bf16 are not widened to f16.
    if (options.dtype == DType::kFloat16) options.frozen_weights = Storage::kAsUsed;
    options.fp32_logits = seed % 2 == 0 && example == nullptr;
    TakeFloat8(seed, options);
    const Tokens tokens = RandomData(example, options, 8, random, seed);
    absl::StatusOr<RunResult> result = RunJob(options, tokens);
    ASSERT_TRUE(result.ok()) << Describe(options, seed) << ": " << result.status();
    EXPECT_EQ(result->measured_peak_bytes, result->plan.peak_bytes) << Describe(options, seed);
    const std::vector<std::string> frozen = FrozenParameters(*result);
    if (frozen.empty()) continue;
    options.steps = 0;
    absl::StatusOr<RunResult> initial = RunJob(options, tokens);
    ASSERT_TRUE(initial.ok()) << Describe(options, seed) << ": " << initial.status();
    for (const std::string& name : frozen) {
      EXPECT_TRUE(result->weights.at(name) == initial->weights.at(name)) << Describe(options, seed) << ": " << name;
    }
  }
}

TEST(MemoryLaws, InstructionsWriteOnlyWhatTheySay) {
  for (int seed = 1000; seed < 1000 + (TestsEveryCombination() ? 40 : 2); ++seed) {
    Random random(seed);
    const Example* example;
    RunOptions options = RandomJob(random, &example);
    options.memory.red_zone_bytes = 256;
    options.steps = 2;
    // A gradient that overflows is NaN, as dead bytes are.
    if (options.step.loss_scaling) options.step.loss_scaling->init_scale = 1;
    std::vector<std::string> violations;
    std::mutex mutex;
    options.observe = [&](const StepProgram& program, const MemoryPlan& plan, RankRuntime& runtime) {
      return std::make_unique<ArenaChecker>(program, plan, runtime, [&](std::string text) {
        std::lock_guard lock(mutex);
        violations.push_back(std::move(text));
      });
    };
    TakeFloat8(seed, options);
    const Tokens tokens = RandomData(example, options, 6, random, seed);
    absl::StatusOr<RunResult> checked = RunJob(options, tokens);
    ASSERT_TRUE(checked.ok()) << Describe(options, seed) << ": " << checked.status();
    EXPECT_TRUE(violations.empty()) << Describe(options, seed) << ": " << violations.size()
                                    << " violations, first: " << violations.front();
    // Dead bytes were poisoned with NaN. If an instruction had read them, the numbers would differ.
    options.observe = nullptr;
    options.memory.red_zone_bytes = 0;
    absl::StatusOr<RunResult> plain = RunJob(options, tokens);
    ASSERT_TRUE(plain.ok()) << plain.status();
    EXPECT_EQ(checked->losses, plain->losses) << Describe(options, seed);
    EXPECT_EQ(checked->gradients, plain->gradients) << Describe(options, seed);
    EXPECT_EQ(checked->weights, plain->weights) << Describe(options, seed);
  }
}

// Gradients live from their first write to the update. With K > 1 they live through the loop over micro-batches; with
// K = 1 they share bytes with the activations of forward.
TEST(MemoryLaws, ThePeakOfShardedAndNoSyncIsTheSameForEveryKAboveOneAndLowerForOne) {
  const bool every = TestsEveryCombination();
  for (Accumulation accumulation : {Accumulation::kSharded, Accumulation::kNoSync}) {
    for (int64_t ranks : every ? std::vector<int64_t>{1, 2, 3} : std::vector<int64_t>{2}) {
      const auto run = [&](int64_t micro_batches) {
        RunOptions options;
        options.reads_gradients = false;
        options.step.accumulation = accumulation;
        options.step.mesh = {.shard = ranks};
        DecoderConfig model = SmallDecoder();
        model.max_positions = 60;  // Long sequences, so that activations make the peak.
        options.model = model;
        absl::StatusOr<RunResult> result = RunJob(options, RandomTokens(micro_batches * ranks, 60, 19, 5));
        EXPECT_TRUE(result.ok()) << result.status();
        if (!result.ok()) return int64_t{0};
        EXPECT_EQ(result->measured_peak_bytes, result->plan.peak_bytes) << micro_batches;
        return result->plan.peak_bytes;
      };
      const int64_t two = run(2);
      EXPECT_LT(run(1), two) << ToString(accumulation) << " W=" << ranks;
      for (int64_t micro_batches : every ? std::vector<int64_t>{3, 9} : std::vector<int64_t>{3}) {
        EXPECT_EQ(run(micro_batches), two) << ToString(accumulation) << " W=" << ranks << " K=" << micro_batches;
      }
    }
  }
}

// LAYERED accumulates gradients one unit at a time, and reduces each unit once. So its gradients do not grow with K,
// and have the same lifetimes as in a step of one micro-batch.
TEST(MemoryLaws, LayeredHoldsGradientsOnlyFromTheirReductionToTheUpdate) {
  for (int64_t ranks : {1, 2}) {
    RunOptions options;
    options.reads_gradients = false;
    options.step.accumulation = Accumulation::kLayered;
    options.step.mesh = {.shard = ranks};
    absl::StatusOr<RunResult> result = RunJob(options, RandomTokens(3 * ranks, 9, 19, 5));
    ASSERT_TRUE(result.ok()) << result.status();
    const StepProgram& program = result->step.program;
    const std::vector<Lifetime> lifetimes = ComputeLifetimes(program);
    for (const GroupState& g : result->step.state.groups) {
      const Lifetime& lifetime = lifetimes[g.own_gradient.where.symbol];
      const Instruction& born = program.instructions[lifetime.first];
      EXPECT_TRUE(born.phase == Phase::kBackward || born.phase == Phase::kReduce) << ToString(born.phase);
      EXPECT_EQ(NameOf(program.instructions[lifetime.last]), "AdamW");
    }
  }
}

}  // namespace
}  // namespace shale::testing
