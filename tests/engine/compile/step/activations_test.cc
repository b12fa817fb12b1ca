// Tests which tensors of a block each preset keeps, by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/compile/model/model.h"
#include "engine/compile/step/unit_emitter.h"
#include "engine/strings/pattern.h"

namespace shale {
namespace {

using ::testing::UnorderedElementsAre;

ModelGraph Decoder(bool qk_norm = false) {
  DecoderConfig c;
  c.vocabulary = 11;
  c.width = 8;
  c.layers = 4;
  c.heads = 2;
  c.kv_heads = 1;
  c.head_width = 4;
  c.hidden = 12;
  c.qk_norm = qk_norm;
  absl::StatusOr<ModelGraph> graph = BuildDecoder(c, {.micro_batch = 2, .sequence_length = 3});
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

std::vector<std::string> KeptNames(const ModelGraph& graph, int unit, const ActivationOptions& options) {
  std::vector<std::string> names;
  const std::vector<bool> kept = DecideKept(graph.units[unit], UnitAccesses(graph.units[unit]),
                                            unit + 1 == std::ssize(graph.units), options, std::ssize(graph.units) - 2);
  for (size_t id = 0; id < kept.size(); ++id) {
    if (kept[id]) names.push_back(graph.units[unit].values[id].name.substr(graph.units[unit].name.size() + 1));
  }
  return names;
}

TEST(Activations, EachPresetKeepsWhatItSays) {
  const ModelGraph graph = Decoder();
  const auto kept = [&](CheckpointingPreset preset) { return KeptNames(graph, 1, {.preset = preset}); };
  EXPECT_THAT(kept(CheckpointingPreset::kNone),
              UnorderedElementsAre("attention_norm", "attention_norm.rstd", "attention.qkv", "attention.out",
                                   "attention.lse", "residual", "ffn_norm", "ffn_norm.rstd", "ffn.gate_up", "ffn.act"));
  EXPECT_THAT(kept(CheckpointingPreset::kCheap),
              UnorderedElementsAre("attention.qkv", "attention.out", "attention.lse", "residual", "ffn.gate_up"));
  EXPECT_THAT(kept(CheckpointingPreset::kAttention),
              UnorderedElementsAre("residual", "ffn_norm", "ffn_norm.rstd", "ffn.gate_up", "ffn.act"));
  EXPECT_THAT(kept(CheckpointingPreset::kFeedForward),
              UnorderedElementsAre("attention_norm", "attention_norm.rstd", "attention.qkv", "attention.out",
                                   "attention.lse", "residual"));
  EXPECT_THAT(kept(CheckpointingPreset::kSublayers), UnorderedElementsAre("residual"));
  EXPECT_THAT(kept(CheckpointingPreset::kBlock), UnorderedElementsAre());
}

TEST(Activations, APresetAppliesToTheChosenBlocksOnly) {
  const ModelGraph graph = Decoder();
  const auto recomputes = [&](const ActivationOptions& options) {
    std::vector<int> layers;
    for (int layer = 0; layer < 4; ++layer) {
      if (KeptNames(graph, 1 + layer, options).empty()) layers.push_back(layer);
    }
    return layers;
  };
  const CheckpointingPreset block = CheckpointingPreset::kBlock;
  EXPECT_EQ(recomputes({.preset = block}), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(recomputes({.preset = block, .every_nth = 2}), (std::vector<int>{0, 2}));
  EXPECT_EQ(recomputes({.preset = block, .first_layers = 1}), (std::vector<int>{0}));
  EXPECT_EQ(recomputes({.preset = block, .first_layers = 1, .last_layers = 2}), (std::vector<int>{0, 2, 3}));
}

TEST(Activations, PatternsNameTensors) {
  const ModelGraph graph = Decoder();
  const std::vector<std::string> kept = KeptNames(graph, 2, {.patterns = {"blocks.1.ffn.*"}});
  EXPECT_THAT(kept, ::testing::Not(::testing::Contains("ffn.gate_up")));
  EXPECT_THAT(KeptNames(graph, 1, {.patterns = {"blocks.1.ffn.*"}}), ::testing::Contains("ffn.gate_up"));
}

// With qk_norm, Q and K are one tensor that three ops update. Recomputing only the statistics of its norm would
// overwrite the kept rotated values with unrotated ones.
TEST(Activations, AValueUpdatedInPlaceIsRecomputedWhole) {
  const ModelGraph graph = Decoder(/*qk_norm=*/true);
  const std::vector<std::string> kept = KeptNames(graph, 1, {.patterns = {"*.q_norm.rstd"}});
  EXPECT_THAT(kept, ::testing::Not(::testing::Contains("attention.qk_normed")));
  EXPECT_THAT(kept, ::testing::Contains("attention.qkv"));
}

TEST(Activations, TheHeadKeepsAllForItsBackwardFollowsItsForward) {
  const ModelGraph graph = Decoder();
  EXPECT_FALSE(KeptNames(graph, 5, {.preset = CheckpointingPreset::kBlock, .patterns = {"*"}}).empty());
}

TEST(Pattern, StarsMatchAnyRun) {
  EXPECT_TRUE(MatchesPattern("blocks.*.ffn.*", "blocks.12.ffn.gate_up"));
  EXPECT_TRUE(MatchesPattern("*", ""));
  EXPECT_TRUE(MatchesPattern("*a*b*", "xxaxxbxx"));
  EXPECT_FALSE(MatchesPattern("*a*b", "xxaxxbx"));
  EXPECT_FALSE(MatchesPattern("blocks.1.ffn", "blocks.11.ffn"));
  EXPECT_FALSE(MatchesPattern("", "a"));
}

}  // namespace
}  // namespace shale
