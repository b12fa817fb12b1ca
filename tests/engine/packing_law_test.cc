// The laws of steps whose sequences hold several documents ([Note: position ids] in kernels/ops/attention.h).
//
// W ranks, K micro-batches.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/job_harness.h"
#include "tests/engine/law_support.h"
#include "tests/engine/tested_backend.h"

namespace shale::testing {
namespace {

// As in tests/engine/laws_test.cc: sums of fp32 in another order.
constexpr double kDocumentsReordered = 2e-5;
constexpr int64_t kPackedLength = 11;

// Runs the job, which must need the memory that was planned.
RunResult RunAsPlanned(const RunOptions& options, const Tokens& tokens) {
  RunResult result = MustRun(options, tokens);
  EXPECT_EQ(result.measured_peak_bytes, result.plan.peak_bytes);
  return result;
}

// The decoders that positions reach in different ways.
std::vector<DecoderConfig> Decoders() {
  std::vector<DecoderConfig> all(4, SmallDecoder());
  all[1].position = PositionKind::kLearned;
  all[2].attention_window = 3;
  all[3] = GemmaLike(SmallDecoder());
  return all;
}

RunOptions Options(const DecoderConfig& model, int64_t ranks = 1) {
  RunOptions options;
  options.model = model;
  options.position_ids = true;
  options.step.mesh = {.shard = ranks};
  return options;
}

Tokens PackedBatch(int64_t sequences) { return RandomTokens(sequences, kPackedLength, SmallDecoder().vocabulary, 5); }

// Returns one sequence for each document of `packed`, with targets that do not count behind it.
Tokens OnePerSequence(const Tokens& packed) {
  Tokens padded{.length = packed.length};
  for (size_t i = 0; i < packed.inputs.size(); ++i) {
    if (packed.position_ids[i] == 0) {
      ++padded.sequences;
      padded.inputs.resize(padded.sequences * packed.length, 0);
      padded.targets.resize(padded.sequences * packed.length, -1);
    }
    const int64_t to = (padded.sequences - 1) * packed.length + packed.position_ids[i];
    padded.inputs[to] = packed.inputs[i];
    padded.targets[to] = packed.targets[i];
  }
  padded.weights.resize(padded.inputs.size(), 1);
  return padded;
}

void ExpectNear(const RunResult& a, const RunResult& b, const std::string& what) {
  ASSERT_FALSE(a.losses.empty()) << what;
  ASSERT_FALSE(b.losses.empty()) << what;
  EXPECT_NEAR(a.losses[0], b.losses[0], kDocumentsReordered * std::abs(b.losses[0])) << what;
  EXPECT_EQ(a.global_tokens, b.global_tokens) << what;
  std::string worst;
  EXPECT_LE(LargestDistance(a.gradients, b.gradients, &worst), kDocumentsReordered) << what << ": " << worst;
}

void ExpectEqualBitsOfDocuments(const RunResult& a, const RunResult& b, const std::string& what) {
  ASSERT_FALSE(a.losses.empty()) << what;
  EXPECT_EQ(a.losses, b.losses) << what;
  EXPECT_EQ(a.gradients, b.gradients) << what;
  EXPECT_EQ(a.weights, b.weights) << what;
}

TEST(PackingLaws, PackedDocumentsLearnWhatTheyLearnAlone) {
  const Tokens packed = PackedBatch(4), alone = OnePerSequence(packed);
  ASSERT_GT(alone.sequences, 2 * packed.sequences);
  for (const DecoderConfig& model : Decoders()) {
    RunOptions options = Options(model);
    const RunResult together = RunAsPlanned(options, packed);
    options.position_ids = false;
    ExpectNear(together, RunAsPlanned(options, alone), Description(model));
  }
}

TEST(PackingLaws, SequencesOfOneDocumentChangeNoBits) {
  Tokens tokens = PackedBatch(5);
  for (size_t i = 0; i < tokens.position_ids.size(); ++i)
    tokens.position_ids[i] = static_cast<int32_t>(i % kPackedLength);
  for (const DecoderConfig& model : {Decoders()[0], Decoders()[2]}) {
    RunOptions options = Options(model, 2);
    const RunResult with = RunAsPlanned(options, tokens);
    options.position_ids = false;
    ExpectEqualBitsOfDocuments(with, RunAsPlanned(options, tokens), Description(model));
  }
}

TEST(PackingLaws, EveryNumberOfRanksAndAccumulationAgreesWithOneBatchOnOneRank) {
  const Tokens tokens = PackedBatch(7);
  for (const DecoderConfig& model : Decoders()) {
    RunOptions whole = Options(model);
    whole.micro_batch = tokens.sequences;
    const RunResult one = RunAsPlanned(whole, tokens);
    for (const Combination& c : Combinations()) {
      RunOptions options = Options(model, 3);
      options.step.strategy = c.strategy;
      options.step.accumulation = c.accumulation;
      ExpectNear(RunAsPlanned(options, tokens), one, absl::StrCat(ToString(c.strategy), " ", ToString(c.accumulation)));
    }
  }
}

TEST(PackingLaws, RecomputationChangesNoBits) {
  const Tokens tokens = PackedBatch(4);
  for (const DecoderConfig& model : Decoders()) {
    RunOptions options = Options(model, 2);
    const RunResult kept = RunAsPlanned(options, tokens);
    for (const CheckpointingPreset preset :
         {CheckpointingPreset::kCheap, CheckpointingPreset::kAttention, CheckpointingPreset::kBlock}) {
      options.step.activations.preset = preset;
      ExpectEqualBitsOfDocuments(RunAsPlanned(options, tokens), kept, std::string(ToString(preset)));
    }
  }
}

// What documents cost: one number for each token of a micro-batch, in the units that read it, and nothing else.
TEST(PackingLaws, OnlyPackedStepsHaveRoomForPositionIds) {
  const Tokens tokens = PackedBatch(4);
  const auto sizes = [&](bool position_ids) {
    RunOptions options = Options(SmallDecoder());
    options.position_ids = position_ids;
    options.micro_batch = 2;
    const RunResult result = RunAsPlanned(options, tokens);
    std::vector<int64_t> sizes;
    for (const Buffer& buffer : result.step.program.buffers) {
      if (buffer.name == "position_ids") sizes.push_back(buffer.size_bytes());
    }
    return sizes;
  };
  EXPECT_TRUE(sizes(false).empty());
  // In forward and in backward of each block; the last block's backward follows its forward.
  const std::vector<int64_t> with = sizes(true);
  EXPECT_EQ(with, std::vector<int64_t>(with.size(), 2 * kPackedLength * 4));
  EXPECT_GE(with.size(), 2 * SmallDecoder().layers - 1);
  EXPECT_LE(with.size(), 2 * SmallDecoder().layers);
}

}  // namespace
}  // namespace shale::testing
