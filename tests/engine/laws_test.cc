// The laws of a training step: how a job is divided must not change what it computes.
//
// W ranks, K micro-batches. The tests compare losses and reduced gradients, not weights: AdamW's first step is lr x
// sign(g), which turns rounding noise around zero into a full step.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "tests/engine/job_harness.h"
#include "tests/engine/law_support.h"
#include "tests/engine/tested_backend.h"

namespace shale::testing {
namespace {

// Two orders of summing the contributions of the same T tokens in fp32 differ by at most T 2^-24 of the sum of
// magnitudes. For these sizes (T <= 77, sums of mixed sign) that is a few hundred roundings. 2e-5 of a tensor's norm is
// ten times what theory expects of random signs, and far below the effect of a lost or doubled token (1 / T).
constexpr double kReordered = 2e-5;
// bf16 activations do not depend on W or K; only the sums of gradients are reordered, and those are fp32. But the
// blocking of matmuls may make a row depend on the rows beside it. Then an activation can round the other way: 2^-9 of
// one activation, seen through a gradient.
constexpr double kReorderedBf16 = 1e-2;

std::string Name(const Combination& c, int64_t ranks, int64_t micro_batch) {
  return absl::StrCat(ToString(c.strategy), " ", ToString(c.accumulation), " W=", ranks, " B=", micro_batch);
}

RunOptions With(const Combination& c, int64_t ranks, int64_t micro_batch) {
  RunOptions options;
  options.step.strategy = c.strategy;
  options.step.accumulation = c.accumulation;
  options.step.mesh = {.shard = ranks};
  options.micro_batch = micro_batch;
  return options;
}

void ExpectSame(const RunResult& a, const RunResult& b, double tolerance, const std::string& what) {
  ASSERT_FALSE(a.losses.empty()) << what;
  ASSERT_FALSE(b.losses.empty()) << what;
  EXPECT_NEAR(a.losses[0], b.losses[0], tolerance * std::abs(b.losses[0])) << what;
  EXPECT_EQ(a.global_tokens, b.global_tokens) << what;
  std::string worst;
  EXPECT_LE(LargestDistance(a.gradients, b.gradients, &worst), tolerance) << what << ": " << worst;
}

void ExpectEqualBits(const RunResult& a, const RunResult& b, const std::string& what) {
  ASSERT_FALSE(a.losses.empty()) << what;
  EXPECT_EQ(a.losses, b.losses) << what;
  EXPECT_EQ(a.norms, b.norms) << what;
  for (const auto& [name, gradient] : a.gradients) EXPECT_EQ(gradient, b.gradients.at(name)) << what << ": " << name;
  for (const auto& [name, weight] : a.weights) EXPECT_EQ(weight, b.weights.at(name)) << what << ": " << name;
}

TEST(StepLaws, EveryStrategyScheduleAndNumberOfRanksAgreesWithOneRank) {
  const Tokens tokens = RandomTokens(7, 11, SmallDecoder().vocabulary, 1);
  const RunResult one = MustRun(With({Strategy::kFullShard, Accumulation::kSharded}, 1, 7), tokens);
  for (const Combination& c : AllCombinations()) {
    for (int64_t ranks : TestsEveryCombination() ? std::vector<int64_t>{1, 2, 3, 4, 8} : std::vector<int64_t>{2, 3}) {
      ExpectSame(MustRun(With(c, ranks, 1), tokens), one, kReordered, Name(c, ranks, 1));
    }
  }
}

// Returns meshes with replicas and shards; if every combination is tested, also some with only one of the two.
std::vector<Mesh> Meshes() {
  if (TestsEveryCombination()) return {{2, 2}, {3, 2}, {2, 3}, {3, 1}, {1, 3}};
  return {{2, 2}};
}

// Calls visit(options, name) for every mesh of Meshes(), every strategy that shards, and each of its accumulations.
template <class Visit>
void ForEachHybrid(Visit&& visit) {
  for (const Mesh& mesh : Meshes()) {
    for (const Combination& c : Combinations()) {
      if (c.strategy == Strategy::kDdp) continue;
      RunOptions options = With(c, 1, 1);
      options.step.mesh = mesh;
      visit(options, absl::StrCat(Name(c, mesh.ranks(), 1), " on ", mesh.replicate, " x ", mesh.shard));
    }
  }
}

TEST(StepLaws, EveryMeshAgreesWithOneRank) {
  for (const int64_t per_rank : {1, 3}) {
    if (per_rank == 1 && !TestsEveryCombination()) continue;
    ForEachHybrid([&](const RunOptions& options, const std::string& name) {
      // The last rank lacks a sequence in the last micro-batch.
      const int64_t sequences = per_rank * options.step.mesh.ranks() - (per_rank > 1);
      const Tokens tokens = RandomTokens(sequences, 11, SmallDecoder().vocabulary, 1);
      const RunResult one = MustRun(With({Strategy::kFullShard, Accumulation::kSharded}, 1, sequences), tokens);
      const RunResult result = MustRun(options, tokens);
      ExpectSame(result, one, kReordered, name);
      EXPECT_NEAR(result.norms[0], one.norms[0], kReordered * one.norms[0]) << name;
      EXPECT_EQ(result.measured_peak_bytes, result.plan.peak_bytes) << name;
    });
  }
}

TEST(StepLaws, EveryMeshAgreesInBf16) {
  const Tokens tokens = RandomTokens(13, 11, SmallDecoder().vocabulary, 1);
  for (MasterWeights master : {MasterWeights::kFloat32, MasterWeights::kSplit}) {
    if (master == MasterWeights::kFloat32 && !TestsEveryCombination()) continue;
    RunOptions options = With({Strategy::kFullShard, Accumulation::kSharded}, 1, 1);
    options.dtype = DType::kBFloat16;
    options.step.master = master;
    const RunResult one = MustRun(options, tokens);
    ForEachHybrid([&](RunOptions other, const std::string& name) {
      other.dtype = DType::kBFloat16;
      other.step.master = master;
      ExpectSame(MustRun(other, tokens), one, kReorderedBf16, name);
    });
  }
}

// Two units write gradients of one group. The group is summed over the replicas after the second unit.
TEST(StepLaws, EveryMeshAgreesWithATiedHead) {
  const Tokens tokens = RandomTokens(11, 11, SmallDecoder().vocabulary, 6);
  DecoderConfig model = SmallDecoder();
  model.tied_head = true;
  RunOptions options = With({Strategy::kFullShard, Accumulation::kSharded}, 1, 11);
  options.model = model;
  const RunResult one = MustRun(options, tokens);
  ForEachHybrid([&](RunOptions other, const std::string& name) {
    other.model = model;
    ExpectSame(MustRun(other, tokens), one, kReordered, name);
  });
}

// On a mesh with one shard every rank holds the full state, as with DDP.
TEST(StepLaws, OneShardIsDdpToTheBit) {
  const Tokens tokens = RandomTokens(7, 11, SmallDecoder().vocabulary, 3);
  for (const Accumulation accumulation : {Accumulation::kNoSync, Accumulation::kLayered}) {
    RunOptions hybrid = With({Strategy::kFullShard, accumulation}, 1, 1);
    hybrid.step.mesh = {.replicate = 3, .shard = 1};
    RunOptions ddp = With({Strategy::kDdp, accumulation}, 3, 1);
    hybrid.steps = ddp.steps = 3;
    hybrid.max_norm = ddp.max_norm = 0;  // The parts of the norm are summed in another order.
    const RunResult a = MustRun(hybrid, tokens), b = MustRun(ddp, tokens);
    EXPECT_EQ(a.losses, b.losses) << ToString(accumulation);
    EXPECT_EQ(a.gradients, b.gradients) << ToString(accumulation);
    EXPECT_EQ(a.weights, b.weights) << ToString(accumulation);
  }
}

TEST(StepLaws, MicroBatchesEqualOneLargeBatch) {
  const Tokens tokens = RandomTokens(6, 11, SmallDecoder().vocabulary, 2);
  const RunResult one = MustRun(With({Strategy::kFullShard, Accumulation::kSharded}, 1, 6), tokens);
  for (const Combination& c : Combinations()) {
    for (int64_t micro_batch : TestsEveryCombination() ? std::vector<int64_t>{1, 2, 3} : std::vector<int64_t>{2}) {
      ExpectSame(MustRun(With(c, 2, micro_batch), tokens), one, kReordered, Name(c, 2, micro_batch));
    }
  }
}

TEST(StepLaws, EveryNumberOfRanksAgreesInBf16) {
  const Tokens tokens = RandomTokens(7, 11, SmallDecoder().vocabulary, 1);
  for (MasterWeights master : {MasterWeights::kFloat32, MasterWeights::kSplit, MasterWeights::kNone}) {
    RunOptions options = With({Strategy::kFullShard, Accumulation::kSharded}, 1, 1);
    options.dtype = DType::kBFloat16;
    options.step.master = master;
    const RunResult one = MustRun(options, tokens);
    for (const Combination& c : Combinations()) {
      RunOptions other = With(c, 3, 1);
      other.dtype = DType::kBFloat16;
      other.step.master = master;
      ExpectSame(MustRun(other, tokens), one, kReorderedBf16, Name(c, 3, 1));
    }
  }
}

TEST(StepLaws, DeferredAndLayeredAgreeToTheBit) {
  const Tokens tokens = RandomTokens(7, 11, SmallDecoder().vocabulary, 3);
  for (Strategy strategy : {Strategy::kDdp, Strategy::kZero1, Strategy::kFullShard}) {
    for (int64_t ranks : {1, 2, 3}) {
      if (!TestsEveryCombination() && (ranks != 2 || strategy == Strategy::kZero1)) continue;
      RunOptions deferred = With({strategy, Accumulation::kNoSync}, ranks, 1);
      RunOptions layered = With({strategy, Accumulation::kLayered}, ranks, 1);
      deferred.steps = layered.steps = 3;
      ExpectEqualBits(MustRun(deferred, tokens), MustRun(layered, tokens),
                      Name({strategy, Accumulation::kLayered}, ranks, 1));
    }
  }
}

TEST(StepLaws, EveryCheckpointingPresetAgreesToTheBit) {
  const Tokens tokens = RandomTokens(4, 11, SmallDecoder().vocabulary, 4);
  DecoderConfig normed = SmallDecoder();
  normed.qk_norm = true;
  DecoderConfig parallel = SmallDecoder();
  parallel.parallel_block = true;
  parallel.norm = NormKind::kLayerNorm;
  parallel.activation = Activation::kGeluErf;
  parallel.tied_head = true;
  for (const DecoderConfig& model : {SmallDecoder(), normed, parallel, GemmaLike(SmallDecoder())}) {
    for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (Accumulation accumulation : {Accumulation::kSharded, Accumulation::kLayered}) {
        if (!TestsEveryCombination() && (dtype == DType::kFloat32) != (accumulation == Accumulation::kLayered))
          continue;
        if (!TestsEveryCombination() && (model.qk_norm || model.parallel_block) &&
            (dtype == DType::kBFloat16) != model.qk_norm) {
          continue;
        }
        RunOptions options = With({Strategy::kFullShard, accumulation}, 2, 1);
        options.model = model;
        options.dtype = dtype;
        options.steps = 2;
        const RunResult keep_all = MustRun(options, tokens);
        for (CheckpointingPreset preset :
             {CheckpointingPreset::kCheap, CheckpointingPreset::kAttention, CheckpointingPreset::kFeedForward,
              CheckpointingPreset::kSublayers, CheckpointingPreset::kBlock}) {
          options.step.activations.preset = preset;
          ExpectEqualBits(MustRun(options, tokens), keep_all, std::string(ToString(preset)));
          if (!TestsEveryCombination()) continue;
          options.step.activations.every_nth = 2;
          ExpectEqualBits(MustRun(options, tokens), keep_all, absl::StrCat(ToString(preset), " every second"));
          options.step.activations.every_nth = 1;
          options.step.activations.last_layers = 1;
          ExpectEqualBits(MustRun(options, tokens), keep_all, absl::StrCat(ToString(preset), " last"));
          options.step.activations.last_layers = 0;
        }
        options.step.activations = {.patterns = {"blocks.*.attention.lse", "blocks.1.ffn*", "*.rstd"}};
        ExpectEqualBits(MustRun(options, tokens), keep_all, "patterns");
      }
    }
  }
}

TEST(StepLaws, SegmentsChangeNoBits) {
  using enum CheckpointingPreset;
  const bool every = TestsEveryCombination();
  DecoderConfig plain = SmallDecoder();
  plain.layers = 4;
  DecoderConfig parallel = plain;
  parallel.parallel_block = true;
  parallel.tied_head = true;
  DecoderConfig normed = plain;
  normed.qk_norm = true;
  const Tokens tokens = RandomTokens(4, 11, plain.vocabulary, 4);
  std::vector<ActivationOptions> kinds = {{.preset = kBlock, .segment_blocks = 2},
                                          {.preset = kNone, .segment_blocks = 3},
                                          {.preset = kCheap, .segment_blocks = 4}};
  if (every) {
    kinds.push_back({.preset = kNone, .segment_blocks = 2});
    kinds.push_back({.preset = kSublayers, .segment_blocks = 3});
    kinds.push_back({.preset = kBlock, .segment_blocks = 4});
  }
  int job = 0;
  for (const DecoderConfig& model : {plain, parallel, normed}) {
    for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (Accumulation accumulation : {Accumulation::kSharded, Accumulation::kNoSync, Accumulation::kLayered}) {
        for (int64_t ranks : {1, 2, 3}) {
          // If every combination is tested, this runs every second one, like the fields of one color on a chessboard:
          // any two values of dtype, accumulation and ranks still meet. cross_product_test has segments, too.
          if (job++ % (every ? 2 : 29) != 0) continue;
          RunOptions options = With({Strategy::kFullShard, accumulation}, ranks, 1);
          options.model = model;
          options.dtype = dtype;
          options.steps = 2;
          const RunResult alone = MustRun(options, tokens);
          for (const ActivationOptions& kind : kinds) {
            options.step.activations = kind;
            ExpectEqualBits(MustRun(options, tokens), alone,
                            absl::StrCat(ToString(kind.preset), ", segments of ", kind.segment_blocks, ", ",
                                         ToString(dtype), " ", Name({Strategy::kFullShard, accumulation}, ranks, 1)));
          }
        }
      }
    }
  }
}

TEST(StepLaws, SegmentsGoWithEveryOtherSetting) {
  DecoderConfig model = SmallDecoder();
  model.layers = 5;
  for (const Combination& c : Combinations()) {
    for (const int64_t sequences : {2, 6}) {  // K = 1 and 3.
      if (!TestsEveryCombination() && sequences == 2) continue;
      const Tokens tokens = RandomTokens(sequences, 11, model.vocabulary, 4);
      RunOptions options = With(c, 2, 1);
      options.model = model;
      options.steps = 2;
      const RunResult alone = MustRun(options, tokens);
      const ActivationOptions ends = {.first_layers = 3, .last_layers = 1, .segment_blocks = 2},
                              named = {.segment_blocks = 3, .patterns = {"blocks.*.attention.lse", "blocks.1.ffn*"}},
                              offloaded = {.segment_blocks = 4, .offload = {"*"}},
                              inputs = {.preset = CheckpointingPreset::kBlock, .segment_blocks = 2, .offload = {"*"}};
      for (const ActivationOptions& activations : {ends, named, offloaded, inputs}) {
        options.step.activations = activations;
        options.step.prefetch = activations.patterns.empty() ? 1 : 3;
        options.step.reshard_after_forward = activations.first_layers == 0;
        const RunResult run = MustRun(options, tokens);
        ExpectEqualBits(run, alone, Name(c, 2, 1));
        EXPECT_EQ(run.measured_peak_bytes, run.plan.peak_bytes) << Name(c, 2, 1);
        if (activations.offload.empty()) continue;
        EXPECT_GT(run.plan.host_bytes, 0) << Name(c, 2, 1);
      }
    }
  }
}

TEST(StepLaws, OffloadChangesNoBits) {
  DecoderConfig model = SmallDecoder();
  model.layers = 4;
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const Combination& c : Combinations()) {
      for (const int64_t sequences : {2, 6}) {  // K = 1 and 3.
        if (!TestsEveryCombination() && (dtype == DType::kFloat32 || sequences == 2)) continue;
        const Tokens tokens = RandomTokens(sequences, 11, model.vocabulary, 4);
        RunOptions options = With(c, 2, 1);
        options.model = model;
        options.dtype = dtype;
        options.steps = 2;
        const RunResult on_device = MustRun(options, tokens);
        EXPECT_EQ(on_device.plan.host_bytes, 0);
        const ActivationOptions all = {.offload = {"*"}}, some = {.offload = {"blocks.*.attention.*", "*.gate_up"}},
                                inputs = {.preset = CheckpointingPreset::kBlock, .offload = {"*"}};
        for (const ActivationOptions& activations : {all, some, inputs}) {
          options.step.activations = activations;
          const RunResult offloaded = MustRun(options, tokens);
          ExpectEqualBits(offloaded, on_device, Name(c, 2, 1));
          EXPECT_GT(offloaded.plan.host_bytes, 0);
          EXPECT_EQ(offloaded.measured_peak_bytes, offloaded.plan.peak_bytes);
        }
      }
    }
  }
}

TEST(StepLaws, PrefetchAndReshardChangeNoBits) {
  const Tokens tokens = RandomTokens(5, 11, SmallDecoder().vocabulary, 5);
  RunOptions options = With({Strategy::kFullShard, Accumulation::kSharded}, 3, 1);
  options.steps = 2;
  const RunResult base = MustRun(options, tokens);
  for (int64_t prefetch : {0, 2, 100}) {
    if (prefetch == 2 && !TestsEveryCombination()) continue;
    for (bool reshard : {true, false}) {
      options.step.prefetch = prefetch;
      options.step.reshard_after_forward = reshard;
      ExpectEqualBits(MustRun(options, tokens), base, absl::StrCat("prefetch ", prefetch, " reshard ", reshard));
    }
  }
}

TEST(StepLaws, PrefetchAndReshardChangeNoBitsOnAMesh) {
  const Tokens tokens = RandomTokens(9, 11, SmallDecoder().vocabulary, 5);
  for (const Accumulation accumulation : {Accumulation::kSharded, Accumulation::kNoSync, Accumulation::kLayered}) {
    if (accumulation != Accumulation::kLayered && !TestsEveryCombination()) continue;
    RunOptions options = With({Strategy::kFullShard, accumulation}, 1, 1);
    options.step.mesh = {.replicate = 2, .shard = 2};
    options.steps = 2;
    const RunResult base = MustRun(options, tokens);
    for (int64_t prefetch : {0, 100}) {
      for (bool reshard : {true, false}) {
        options.step.prefetch = prefetch;
        options.step.reshard_after_forward = reshard;
        ExpectEqualBits(MustRun(options, tokens), base, absl::StrCat("prefetch ", prefetch, " reshard ", reshard));
      }
    }
  }
}

TEST(StepLaws, TiedHeadAgreesOverStrategiesAndSchedules) {
  const Tokens tokens = RandomTokens(5, 11, SmallDecoder().vocabulary, 6);
  DecoderConfig model = SmallDecoder();
  model.tied_head = true;
  model.position = PositionKind::kLearned;
  model.norm = NormKind::kLayerNorm;
  model.qkv_bias = model.linear_bias = true;
  model.activation = Activation::kGeluTanh;
  RunOptions options = With({Strategy::kFullShard, Accumulation::kSharded}, 1, 5);
  options.model = model;
  const RunResult one = MustRun(options, tokens);
  for (const Combination& c : Combinations()) {
    for (int64_t ranks : {1, 2, 3}) {
      if (ranks != 3 && !TestsEveryCombination()) continue;
      RunOptions other = With(c, ranks, 1);
      other.model = model;
      ExpectSame(MustRun(other, tokens), one, kReordered, Name(c, ranks, 1));
    }
  }
}

TEST(StepLaws, AModelOfOnesOwnObeysThemToo) {
  const Tokens tokens = RandomTokens(7, 5, SmallMlp().vocabulary, 7, /*masks=*/false);
  RunOptions options = With({Strategy::kFullShard, Accumulation::kSharded}, 1, 7);
  options.model = SmallMlp();
  const RunResult one = MustRun(options, tokens);
  EXPECT_EQ(one.global_tokens, 7);
  for (const Combination& c : Combinations()) {
    RunOptions other = With(c, 3, 2);
    other.model = SmallMlp();
    ExpectSame(MustRun(other, tokens), one, kReordered, Name(c, 3, 2));
  }
}

TEST(StepLaws, AMaskedShortBatchEqualsTheSmallerOne) {
  const Tokens small = RandomTokens(3, 11, SmallDecoder().vocabulary, 8);
  Tokens padded = small;
  padded.sequences = 6;
  padded.inputs.resize(6 * 11, 0);
  padded.targets.resize(6 * 11, -1);
  for (const Combination& c : Combinations()) {
    ExpectSame(MustRun(With(c, 2, 1), padded), MustRun(With(c, 1, 1), small), kReordered, Name(c, 2, 1));
  }
}

TEST(StepLaws, AnAllMaskedRankChangesNothing) {
  // Two sequences on three ranks: the third rank has only masked sequences.
  const Tokens tokens = RandomTokens(2, 11, SmallDecoder().vocabulary, 9);
  for (const Combination& c : Combinations()) {
    ExpectSame(MustRun(With(c, 3, 1), tokens), MustRun(With(c, 1, 1), tokens), kReordered, Name(c, 3, 1));
  }
}

TEST(StepLaws, AStepWithoutAValidTokenUpdatesNothing) {
  Tokens tokens = RandomTokens(3, 11, SmallDecoder().vocabulary, 10);
  std::fill(tokens.targets.begin(), tokens.targets.end(), -1);
  for (const Combination& c : Combinations()) {
    RunOptions options = With(c, 2, 1);
    std::map<std::string, std::vector<float>> before;
    options.edit_weights = [&](const std::string& name, std::vector<float>& values) { before[name] = values; };
    const RunResult result = MustRun(options, tokens);
    EXPECT_EQ(result.global_tokens, 0) << Name(c, 2, 1);
    EXPECT_EQ(result.losses, std::vector<double>{0.0}) << Name(c, 2, 1);
    EXPECT_EQ(result.weights, before) << Name(c, 2, 1);
  }
}

TEST(StepLaws, ANonFiniteValueOnOneRankSkipsTheUpdateOnAll) {
  const Tokens tokens = RandomTokens(4, 11, SmallDecoder().vocabulary, 11, /*masks=*/false);
  for (const Combination& c : Combinations()) {
    RunOptions options = With(c, 2, 1);
    std::map<std::string, std::vector<float>> before;
    options.edit_weights = [&](const std::string& name, std::vector<float>& values) {
      if (name == "head.weight") values[3] = std::numeric_limits<float>::infinity();
      before[name] = values;
    };
    const RunResult result = MustRun(options, tokens);
    EXPECT_TRUE(result.non_finite) << Name(c, 2, 1);
    EXPECT_EQ(result.weights, before) << Name(c, 2, 1);
  }
}

TEST(StepLaws, ANonFiniteValueOnOneReplicaSkipsTheUpdateOnAll) {
  const Tokens tokens = RandomTokens(8, 11, SmallDecoder().vocabulary, 11, /*masks=*/false);
  ForEachHybrid([&](RunOptions options, const std::string& name) {
    for (const UpdateTime update : {UpdateTime::kAfterBackward, UpdateTime::kInBackward}) {
      options.step.update = update;
      if (update == UpdateTime::kInBackward) options.max_norm = 0;
      std::map<std::string, std::vector<float>> before;
      options.edit_weights = [&](const std::string& parameter, std::vector<float>& values) {
        if (parameter == "head.weight") values[3] = std::numeric_limits<float>::infinity();
        before[parameter] = values;
      };
      const RunResult result = MustRun(options, tokens);
      EXPECT_TRUE(result.non_finite) << name;
      EXPECT_EQ(result.weights, before) << name;
    }
  });
}

TEST(StepLaws, ThreadsAndReferenceOpsAgree) {
  const Tokens tokens = RandomTokens(4, 11, SmallDecoder().vocabulary, 12);
  RunOptions options = With({Strategy::kFullShard, Accumulation::kSharded}, 2, 2);
  const RunResult fast = MustRun(options, tokens);
  options.threads = 2;
  ExpectEqualBits(MustRun(options, tokens), fast, "two threads");
  options.ops = OpsKind::kReference;
  ExpectSame(MustRun(options, tokens), fast, kReordered, "reference ops");
}

TEST(StepLaws, TheSameJobRepeatsItsBits) {
  const Tokens tokens = RandomTokens(4, 11, SmallDecoder().vocabulary, 13);
  RunOptions options = With({Strategy::kFullShard, Accumulation::kSharded}, 3, 1);
  options.steps = 4;
  ExpectEqualBits(MustRun(options, tokens), MustRun(options, tokens), "again");
}

}  // namespace
}  // namespace shale::testing
