// The laws of frozen parameters: freezing some changes nothing but that they keep their values. The gradients of the
// others have the same bits, and nothing is computed that only a frozen parameter would need.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/strings/pattern.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/matmul.h"
#include "kernels/ops/quantized.h"
#include "tests/engine/job_harness.h"
#include "tests/engine/law_support.h"
#include "tests/engine/tested_backend.h"

namespace shale::testing {
namespace {

using Patterns = std::vector<std::string>;

// Biases, LayerNorms, a table of positions, and a head that is the embedding's table.
DecoderConfig TiedDecoder() {
  DecoderConfig model = SmallDecoder();
  model.tied_head = true;
  model.position = PositionKind::kLearned;
  model.norm = NormKind::kLayerNorm;
  model.activation = Activation::kGeluErf;
  model.qkv_bias = model.linear_bias = true;
  return model;
}

DecoderConfig NormedDecoder() {
  DecoderConfig model = SmallDecoder();
  model.qk_norm = true;
  return model;
}

const std::vector<std::pair<DecoderConfig, std::vector<Patterns>>>& Models() {
  static const auto& models = *new std::vector<std::pair<DecoderConfig, std::vector<Patterns>>>{
      {NormedDecoder(),
       {{"blocks.1.*"}, {"*norm*"}, {"head.weight"}, {"embedding.weight"}, {"blocks.0.attention.q_norm.weight"}}},
      {TiedDecoder(),
       {{"*.bias"}, {"embedding.positions"}, {"blocks.2.ffn.down.weight"}, {"blocks.*norm.weight", "final_norm.bias"}}},
  };
  return models;
}

TEST(FrozenLaws, GradientsOfWhatTrainsHaveTheBitsOfTheFullModel) {
  for (const auto& [model, all_patterns] : Models()) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      if (dtype == DType::kBFloat16 && !TestsEveryCombination()) continue;
      const Tokens tokens = RandomTokens(3, 11, model.vocabulary, 5);
      RunOptions options;
      options.model = model;
      options.dtype = dtype;
      const RunResult full = MustRun(options, tokens);
      for (const Patterns& patterns : all_patterns) {
        options.train_only = patterns;
        const RunResult some = MustRun(options, tokens);
        const std::string what = absl::StrJoin(patterns, ", ");
        EXPECT_EQ(some.losses, full.losses) << what;
        for (const auto& [name, gradient] : full.gradients) {
          EXPECT_EQ(some.gradients.contains(name), MatchesAny(patterns, name)) << what << ": " << name;
        }
        for (const auto& [name, gradient] : some.gradients) {
          EXPECT_TRUE(gradient == full.gradients.at(name)) << what << ": " << name;
        }
      }
    }
  }
}

TEST(FrozenLaws, FrozenWeightsKeepTheirBitsAndTheOthersTrainAsOnOneRank) {
  const Tokens tokens = RandomTokens(7, 11, TiedDecoder().vocabulary, 5);
  const Patterns patterns = {"blocks.1.*", "final_norm.*", "blocks.2.attention.qkv.bias"};
  RunOptions options;
  options.model = TiedDecoder();
  options.train_only = patterns;
  options.steps = 3;
  ExpectRanksAgree(options, tokens, [&](const std::string& name) { return MatchesAny(patterns, name); });
}

TEST(FrozenLaws, NoSyncAndLayeredAgreeToTheBitAndSoDoesEveryKindOfRecomputation) {
  const Tokens tokens = RandomTokens(5, 11, SmallDecoder().vocabulary, 7);
  for (const Patterns& patterns : {Patterns{"blocks.1.*"}, Patterns{"blocks.*norm*", "head*"}}) {
    RunOptions options;
    options.train_only = patterns;
    options.step.mesh = {.shard = 2};
    options.steps = 2;
    ExpectSchedulesAgree(options, tokens, /*most_blocks=*/3);
  }
}

int64_t SumOf(const RunResult& result, BufferCategory category) {
  int64_t bytes = 0;
  for (const Buffer& b : result.step.program.buffers) bytes += b.category == category ? b.size_bytes() : 0;
  return bytes;
}

// Matrices of more than one group of 4-bit weights, so that shards begin inside of them.
DecoderConfig WideDecoder() {
  DecoderConfig model = NormedDecoder();
  model.width = 120;
  model.head_width = 30;
  model.hidden = 141;
  model.init_std = 0.05;
  return model;
}

// Expects that `narrow`, whose frozen weights are stored in a narrow form, computed the same bits as `wide`, whose
// frozen weights have the same values in the compute dtype, and changed none of the frozen weights of `initial`.
void ExpectSameBits(const RunResult& narrow, const RunResult& wide, const RunResult& initial, const Patterns& trained) {
  EXPECT_FALSE(narrow.losses.empty());
  EXPECT_EQ(narrow.losses, wide.losses);
  EXPECT_TRUE(narrow.gradients == wide.gradients);
  EXPECT_EQ(narrow.measured_peak_bytes, narrow.plan.peak_bytes);
  EXPECT_EQ(SumOf(wide, BufferCategory::kWidenedParameters), 0);
  EXPECT_GT(SumOf(narrow, BufferCategory::kWidenedParameters), 0);
  for (const auto& [name, weight] : narrow.weights) {
    EXPECT_TRUE(weight == (MatchesAny(trained, name) ? wide : initial).weights.at(name)) << name;
  }
}

// Frozen weights that are stored in bf16 or in 4 bits give the bits of a run whose frozen weights have the same values
// in the compute dtype. They depend neither on the number of ranks nor on the training.
TEST(FrozenLaws, NarrowWeightsComputeWhatTheirValuesCompute) {
  const Patterns patterns = {"blocks.1.*", "final_norm.*", "blocks.*.attention.qkv.weight"};
  struct Case {
    DecoderConfig model;
    Storage stored;
    DType dtype = DType::kFloat32;
  };
  for (const Case& test : {Case{NormedDecoder(), Storage::kBFloat16}, Case{NormedDecoder(), Storage::kNf4},
                           Case{WideDecoder(), Storage::kNf4, DType::kBFloat16}}) {
    const Storage stored = test.stored;
    const bool wide_model = test.dtype == DType::kBFloat16;
    if (wide_model && !TestsEveryCombination()) continue;
    const Tokens tokens = RandomTokens(5, 11, test.model.vocabulary, 5);
    RunOptions options;
    options.model = test.model;
    options.dtype = test.dtype;
    options.train_only = patterns;
    options.frozen_weights = stored;
    options.steps = 0;
    const RunResult initial = MustRun(options, tokens);
    for (const Combination& c : Combinations()) {
      for (const Mesh& mesh : {Mesh{1, 1}, Mesh{1, 3}, Mesh{2, 2}}) {
        if (c.strategy == Strategy::kDdp && mesh.replicate > 1) continue;
        if ((mesh.replicate > 1 || wide_model) && !TestsEveryCombination()) continue;
        if (wide_model && mesh.ranks() == 1) continue;
        options.steps = 2;
        options.step = {.strategy = c.strategy, .accumulation = c.accumulation, .mesh = mesh};
        options.step.reshard_after_forward = mesh.shard != 3 || c.accumulation != Accumulation::kLayered;
        options.step.offload_state.parameters = mesh.replicate > 1 && c.strategy == Strategy::kFullShard;
        options.frozen_weights = stored;
        options.edit_weights = {};
        const RunResult narrow = MustRun(options, tokens);
        options.frozen_weights = Storage::kAsUsed;
        options.edit_weights = [&](const std::string& name, std::vector<float>& values) {
          if (MatchesAny(patterns, name)) return;
          values = narrow.weights.at(name);
          if (test.dtype != DType::kBFloat16) return;
          for (float& value : values) value = ToFloat(RoundToBFloat16(value));
        };
        const RunResult wide = MustRun(options, tokens);
        SCOPED_TRACE(absl::StrCat(ToString(stored), " ", ToString(c.strategy), " ", ToString(c.accumulation), " ",
                                  mesh.replicate, " x ", mesh.shard));
        ExpectSameBits(narrow, wide, initial, patterns);
        const int64_t narrow_bytes = SumOf(narrow, BufferCategory::kFrozenParameters),
                      wide_bytes = SumOf(wide, BufferCategory::kFrozenParameters);
        if (stored == Storage::kBFloat16) {
          EXPECT_EQ(2 * narrow_bytes, wide_bytes);
        } else if (wide_model) {
          EXPECT_LT(narrow_bytes, 0.6 * wide_bytes);
        }
      }
    }
  }
}

// A matrix of a block is in 4 bits if it is frozen; nothing else is. What is gathered is 4-bit too.
TEST(FrozenLaws, OnlyMatricesOfBlocksAreIn4BitsAndTravelSo) {
  RunOptions options;
  options.model = WideDecoder();
  options.train_only = {"blocks.1.*", "*.q_norm.weight"};
  options.frozen_weights = Storage::kNf4;
  options.step.mesh = {.shard = 2};
  options.steps = TestsEveryCombination() ? 1 : 0;
  const RunResult result = MustRun(options, RandomTokens(2, 11, 23, 5));
  std::map<std::string, int64_t> gathered, widened;  // Bytes of one gather, and of what it is widened to.
  for (const Instruction& instruction : result.step.program.instructions) {
    if (const auto* gather = std::get_if<Collective>(&instruction.action); gather != nullptr) {
      if (gather->kind != CollectiveKind::kAllGather || gather->full.dtype != DType::kUInt8) continue;
      gathered[result.step.program.units[instruction.unit]] = gather->full.extent_bytes();
    }
    const Op* op = std::get_if<Op>(&instruction.action);
    if (op == nullptr || !op->Is<Nf4Dequantize>()) continue;
    widened[result.step.program.units[instruction.unit]] = op->As<Nf4Dequantize>()->out_RN.extent_bytes();
  }
  ASSERT_EQ(gathered.size(), 2);
  for (const char* block : {"blocks.0", "blocks.2"}) {
    EXPECT_NEAR(gathered[block], widened[block] * 4.129 / 32, 0.001 * gathered[block]) << block;
  }
  for (const GroupState& g : result.step.state.groups) {
    for (const ShardLayout::PlacedParameter& parameter : g.layout().parameters()) {
      const bool matrix =
          parameter.shape.size() == 2 && MatchesAny(Patterns{"blocks.0.*", "blocks.2.*"}, parameter.name);
      EXPECT_EQ(g.storage == Storage::kNf4, matrix) << parameter.name;
    }
  }
}

TEST(FrozenLaws, WeightsThatAreNotFiniteCannotBeStoredIn4Bits) {
  RunOptions options;
  options.train_only = {"head.weight"};
  options.frozen_weights = Storage::kNf4;
  options.edit_weights = [](const std::string& name, std::vector<float>& values) {
    if (name == "blocks.1.ffn.down.weight") values[130] = std::nanf("");
  };
  const absl::StatusOr<RunResult> result = RunJob(options, RandomTokens(1, 11, 23, 5));
  EXPECT_EQ(result.status().message(),
            "blocks.1.ffn.down.weight has a weight that is not finite among elements 128 to 192, so it cannot be "
            "stored in NF4; mend the weights, or use optimizer.frozen_weights BF16");
}

// Returns what the state of a group has besides its weights.
int64_t BytesBesidesWeights(const RunResult& result, bool frozen) {
  int64_t bytes = 0;
  for (const GroupState& g : result.step.state.groups) {
    if (g.frozen != frozen) continue;
    for (const Tensor& t : {g.master, g.low, g.own_gradient, g.full_gradient}) bytes += t.present() ? 1 : 0;
    bytes += std::ssize(g.states);
  }
  return bytes;
}

// What train_only = blocks.1 of three blocks leaves out: the backward of the embedding and of block 0 with their
// gathers, and the gradients of the weights of block 2 and of the head.
TEST(FrozenLaws, NothingIsComputedOrHeldThatOnlyFrozenParametersNeed) {
  RunOptions options;
  options.train_only = {"blocks.1.*"};
  options.step.mesh = {.shard = 2};
  options.dtype = DType::kBFloat16;
  options.step.snapshot = true;
  options.step.master = MasterWeights::kNone;
  const Tokens tokens = RandomTokens(2, 11, SmallDecoder().vocabulary, 5);
  const RunResult result = MustRun(options, tokens);
  EXPECT_EQ(BytesBesidesWeights(result, /*frozen=*/true), 0);
  EXPECT_GT(BytesBesidesWeights(result, /*frozen=*/false), 0);
  std::map<std::string, int> matmuls, gathers;
  std::set<std::string> backward;
  for (const Instruction& instruction : result.step.program.instructions) {
    if (instruction.unit < 0) continue;
    const std::string& unit = result.step.program.units[instruction.unit];
    const auto* collective = std::get_if<Collective>(&instruction.action);
    gathers[unit] += collective != nullptr && collective->kind == CollectiveKind::kAllGather;
    EXPECT_TRUE(instruction.phase != Phase::kReduce || unit == "blocks.1") << NameOf(instruction);
    if (instruction.phase != Phase::kBackward) continue;
    backward.insert(unit);
    const Op* op = std::get_if<Op>(&instruction.action);
    matmuls[unit] += op != nullptr && op->Is<MatMul>();
  }
  EXPECT_EQ(backward, (std::set<std::string>{"blocks.1", "blocks.2", "head"}));
  EXPECT_EQ(matmuls["blocks.2"], 4);  // One for each of four linear layers: the gradient of its input.
  EXPECT_EQ(matmuls["blocks.1"], 8);
  EXPECT_EQ(gathers["embedding"], 1);
  EXPECT_EQ(gathers["blocks.0"], 1);
  for (const GroupState& g : result.step.state.groups) {
    EXPECT_EQ(g.snapshot.high.where.symbol == g.saved.high.where.symbol, g.frozen);
  }

  // The head alone needs no backward of any block, and a frozen head only the gradient of its input.
  options.train_only = {"head.weight"};
  for (const Instruction& instruction : MustRun(options, tokens).step.program.instructions) {
    EXPECT_TRUE(instruction.phase != Phase::kBackward || instruction.unit == 4) << NameOf(instruction);
  }
}

// Optimizers, clipping and updates count only what trains.
TEST(FrozenLaws, UpdatesInBackwardAndOnTheHostChangeNoBits) {
  const Tokens tokens = RandomTokens(6, 11, SmallDecoder().vocabulary, 9);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    RunOptions options;
    options.train_only = {"blocks.*.attention.*", "head.weight"};
    options.dtype = dtype;
    options.step.mesh = {.shard = 2};
    options.step.clipping = Clipping::kPerUnit;
    options.max_norm = 0.05;
    options.steps = 3;
    options.reads_gradients = false;
    if (dtype == DType::kBFloat16) {
      options.step.master = MasterWeights::kNone;
      options.step.optimizer.rule = AdamWRule{.state_dtype = DType::kBFloat16};
    }
    const RunResult after = MustRun(options, tokens);
    const auto expect_same = [&](const std::string& what) {
      const RunResult result = MustRun(options, tokens);
      EXPECT_EQ(result.losses, after.losses) << what;
      EXPECT_EQ(result.norms, after.norms) << what;
      EXPECT_TRUE(result.weights == after.weights) << what;
      EXPECT_EQ(result.measured_peak_bytes, result.plan.peak_bytes) << what;
    };
    options.step.update = UpdateTime::kInBackward;
    expect_same("in backward");
    options.step.update_device = UpdateDevice::kHost;
    expect_same("in backward, on the host");
    options.step.update = UpdateTime::kAfterBackward;
    options.step.update_device = UpdateDevice::kSame;
    options.step.offload_state = {.moments = true, .parameters = true};
    expect_same("state in host memory");
  }
}

}  // namespace
}  // namespace shale::testing
