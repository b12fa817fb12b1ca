// Laws of saving and resuming: N steps, a checkpoint and N more steps equal 2N steps. The bits are equal if the job is
// unchanged. If it is sharded, accumulated or stored in another way, the restored state has the same bits, and later
// losses differ by rounding only.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/files/checkpoint/store.h"
#include "tests/engine/run/train/resume_fixture.h"

namespace shale {
namespace {

struct Sharding {
  const char* strategy;
  const char* accumulation;
};
constexpr Sharding kShardings[] = {{"DDP", "NO_SYNC"},        {"DDP", "LAYERED"},        {"ZERO1", "NO_SYNC"},
                                   {"ZERO1", "LAYERED"},      {"ZERO2", "SHARDED"},      {"ZERO2", "LAYERED"},
                                   {"FULL_SHARD", "SHARDED"}, {"FULL_SHARD", "NO_SYNC"}, {"FULL_SHARD", "LAYERED"}};
const std::vector<std::string> kPrecisions[] = {
    {"precision.compute=FP32"}, {"precision.compute=BF16"}, {"precision.compute=BF16", "precision.master=SPLIT"}};

// Every sharding with every precision. Each sharding, and each precision, is saved in both ways.
class SameBits : public ResumeTest, public ::testing::WithParamInterface<std::tuple<int, int>> {
 protected:
  static bool IsAsynchronous(int sharding, int precision) { return (sharding + precision) % 2 == 0; }
  std::vector<std::string> Overrides() const {
    const auto [sharding, precision] = GetParam();
    std::vector<std::string> all = kPrecisions[precision];
    all.push_back(absl::StrCat("sharding.strategy=", kShardings[sharding].strategy));
    all.push_back(absl::StrCat("sharding.accumulation=", kShardings[sharding].accumulation));
    all.push_back(absl::StrCat("checkpoint.asynchronous=", IsAsynchronous(sharding, precision) ? "true" : "false"));
    return all;
  }
};

TEST_P(SameBits, StoppingAndGoingOnChangesNone) { ExpectThatStoppingChangesNoBit(MakeJob(Overrides())); }

std::string NameOf(const std::tuple<int, int>& parameter) {
  const auto [sharding, precision] = parameter;
  constexpr const char* kNames[] = {"Fp32", "Bf16", "Split"};
  return absl::StrCat(kShardings[sharding].strategy, "_", kShardings[sharding].accumulation, "_", kNames[precision]);
}

static_assert(std::size(kShardings) == 9 && std::size(kPrecisions) == 3);
INSTANTIATE_TEST_SUITE_P(Jobs, SameBits, ::testing::Combine(::testing::Range(0, 9), ::testing::Range(0, 3)),
                         [](const auto& test) { return NameOf(test.param); });

constexpr char kNesterov[] = "optimizer={rule: SGD learning_rate: 0.05 nesterov: true}";
constexpr char kLion[] = "optimizer={rule: LION learning_rate: 1e-3}";
constexpr char kLean[] = "optimizer.state=LEAN";
constexpr char kGroupsOfTwo[] = "sharding={ranks: 4 shard_ranks: 2}";
constexpr char kPreviousNorm[] =
    "optimizer={learning_rate: 1e-2 clipping: PREVIOUS_NORM max_gradient_norm: 0.01 non_finite: SKIP}";
constexpr char kFrozen[] = "optimizer.train_only=[blocks.1.*, final_norm.*]";
constexpr char kNf4[] = "optimizer.frozen_weights=NF4";
constexpr char kAdamW8Bit[] = "optimizer={rule: ADAMW_8BIT learning_rate: 1e-2}";

// Jobs that differ from those above in something other than their sharding.
struct Variation {
  const char* name;
  const char* model;
  std::vector<std::string> overrides;
  const char* length = "steps: 6";
};

class SameBitsToo : public ResumeTest, public ::testing::WithParamInterface<Variation> {};

TEST_P(SameBitsToo, StoppingAndGoingOnChangesNone) {
  ExpectThatStoppingChangesNoBit(MakeJob(GetParam().overrides, GetParam().model, GetParam().length));
}

// The head is not tied to the embedding, and four heads share two keys and values.
constexpr char kLlama[] = "decoder { family: LLAMA width: 24 layers: 2 heads: 4 kv_heads: 2 hidden: 40 }";
constexpr char kMlp[] = "mlp { embedding: 5 hidden: 13 layers: 2 }";
constexpr char kFp32[] = "precision.compute=FP32", kBf16[] = "precision.compute=BF16",
               kSplit[] = "precision.master=SPLIT", kLayered[] = "sharding.accumulation=LAYERED",
               kZero2[] = "sharding.strategy=ZERO2", kRecomputeBlocks[] = "activation_checkpointing.preset=BLOCK",
               kBlocking[] = "checkpoint.asynchronous=false";
// Matmuls in fp8, and the sizes that they need.
constexpr char kFloat8[] = "precision={compute: BF16 matmuls: FP8}", kFloat8Length[] = "batch.sequence_length=16",
               kFloat8Sizes[] = "model.decoder={width: 32 hidden: 48}";

std::vector<Variation> VariationsOfModels() {
  return {
      {"Llama", kLlama, {kFp32}},
      {"LlamaSplit", kLlama, {kBf16, kSplit}},
      {"LlamaLayered", kLlama, {kBf16, kLayered}},
      {"LlamaReplicated", kLlama, {kBf16, kSplit, kZero2}},
      {"Mlp", kMlp, {kFp32}},
      {"MlpSplit", kMlp, {kBf16, kSplit, kZero2}},
      {"Block", kGpt2, {kBf16, kRecomputeBlocks}},
      {"BlockLayered", kLlama, {kBf16, kSplit, kRecomputeBlocks, kLayered}},
  };
}

std::vector<Variation> VariationsOfData() {
  // With both, the last evaluation follows the last step.
  static constexpr char kHeldOut[] = "data.evaluation_fraction=0.25", kEvaluate[] = "telemetry.evaluate_every=2";
  // The text has 175 samples. Two and a half epochs are five batches of 85 and one of 13, and the checkpoint after the
  // third batch lies in the second epoch.
  static constexpr char kBatch[] = "batch.global_batch=85", kEpochs[] = "epochs: 2.5";
  return {
      {"Evaluation", kGpt2, {kBf16, kHeldOut, kEvaluate}},
      {"FollowedEvaluation", kGpt2, {kFp32, kHeldOut, kEvaluate, "checkpoint.keep_best=true", "checkpoint.patience=9"}},
      {"EvaluationSplit", kLlama, {kBf16, kSplit, kHeldOut, kEvaluate, kZero2}},
      {"Epochs", kGpt2, {kFp32, kBatch}, kEpochs},
      {"EpochsSplit", kLlama, {kBf16, kSplit, kBatch, "batch.micro_batch=3"}, kEpochs},
  };
}

std::vector<Variation> VariationsOfOptimizers() {
  return {
      {"Sgd", kGpt2, {kBf16, kNesterov}},
      {"SgdWithoutMomentum", kLlama, {kFp32, "optimizer={rule: SGD momentum: 0}"}},
      {"LionSplit", kLlama, {kBf16, kSplit, kLion}},
      {"Lean", kGpt2, {kBf16, kLean}},
      {"LeanLayeredOneRank", kLlama, {kBf16, kLean, kLayered, "sharding.ranks=1"}},
      {"LeanReplicatedBlocking", kMlp, {kBf16, kLean, "sharding.strategy=DDP", kBlocking}},
      {"LeanLionGroupsOfTwo", kGpt2, {kBf16, "optimizer={rule: LION learning_rate: 1e-3 state: LEAN}", kGroupsOfTwo}},
      {"LeanAdamW8Bit", kLlama, {kBf16, "optimizer={rule: ADAMW_8BIT learning_rate: 1e-2 state: LEAN}", kZero2}},
      {"PreviousNorm", kGpt2, {kFp32, kPreviousNorm, kGroupsOfTwo}},
      {"PreviousNormInBackward", kLlama, {kBf16, kSplit, kPreviousNorm, "optimizer.update=IN_BACKWARD"}},
      {"LionReplicated", kGpt2, {kFp32, kLion, "sharding.strategy=DDP"}},
      {"AdamW8BitGroupsOfTwo", kLlama, {kFp32, kAdamW8Bit, kGroupsOfTwo, kZero2}},
      {"AdamW8Bit", kGpt2, {kFp32, kAdamW8Bit}},
      {"AdamW8BitSplitLayered", kLlama, {kBf16, kSplit, kLayered, kAdamW8Bit}},
      {"AdamW8BitBlocking", kMlp, {kBf16, kZero2, kAdamW8Bit, kBlocking}},
  };
}

std::vector<Variation> VariationsOfDTypes() {
  return {
      {"Bf16Moments", kLlama, {kFp32, "optimizer.moments=BF16"}},
      {"LeanGradients", kGpt2, {kBf16, kLean, "precision.gradient_shards=BF16", "sharding.accumulation=SHARDED"}},
      {"NarrowReduction", kGpt2, {kBf16, "precision.reduce=BF16", "sharding.accumulation=SHARDED"}},
      {"NarrowReductionOfGroups", kLlama, {kFp32, "precision.reduce=BF16", kLayered, kGroupsOfTwo}},
      {"GradientsOneRank", kLlama, {kFp32, "precision.gradient_shards=BF16", "sharding.ranks=1", kLayered}},
      {"Fp16", kGpt2, {"precision={compute: FP16 init_scale: 1e9 growth_interval: 2}", kZero2}},
      {"Fp16Layered",
       kLlama,
       {"precision={compute: FP16 gradient_shards: BF16 growth_interval: 2 fp32_logits: true}", kLayered}},
      {"Fp8",
       "decoder { family: LLAMA width: 32 layers: 2 heads: 2 kv_heads: 1 hidden: 48 }",
       {kFloat8, kRecomputeBlocks, kFloat8Length}},
      {"Fp8Blockwise",
       "decoder { family: LLAMA width: 32 layers: 2 heads: 2 kv_heads: 1 hidden: 144 }",
       {kFloat8, "precision.fp8_scaling=BLOCKWISE", kLayered, kFloat8Length}},
  };
}

std::vector<Variation> VariationsOfWhatTrains() {
  return {
      {"Frozen", kGpt2, {kFp32, kFrozen}},
      {"FrozenStoredInBf16", kLlama, {kFp32, "optimizer.train_only=blocks.1.*", "optimizer.frozen_weights=BF16"}},
      {"FrozenStoredInNf4", kLlama, {kBf16, kFrozen, kNf4}},
      {"FrozenStoredInNf4Blocking", kGpt2, {kFp32, kFrozen, kNf4, kGroupsOfTwo, kBlocking}},
      {"FrozenBf16", kLlama, {kBf16, "optimizer.train_only=[*norm*, blocks.*.attention.*]"}},
      {"FrozenSplitReplicated", kGpt2, {kBf16, kSplit, kZero2, "optimizer.train_only=*.weight", kGroupsOfTwo}},
      {"FrozenLeanBlocking", kLlama, {kBf16, kLean, "optimizer.train_only=head.*", kBlocking}},
      {"Adapter", kGpt2, {kFp32, "model.adapter={rank: 2 targets: \"c_attn\"}"}},
      {"AdapterLean", kLlama, {kBf16, kLean, kLayered, "model.adapter={rank: 3 alpha: 6 rank_stabilized: true}"}},
  };
}

std::vector<Variation> VariationsOfReplicas() {
  return {
      {"GroupsOfTwo", kGpt2, {kFp32, kGroupsOfTwo}},
      {"GroupsOfTwoSplitLayered", kLlama, {kBf16, kGroupsOfTwo, kSplit, kLayered}},
      {"GroupsOfOne", kGpt2, {kBf16, "sharding.shard_ranks=1"}},
  };
}

std::vector<Variation> Variations() {
  std::vector<Variation> all;
  for (const auto& of : {VariationsOfModels, VariationsOfData, VariationsOfOptimizers, VariationsOfDTypes,
                         VariationsOfWhatTrains, VariationsOfReplicas}) {
    const std::vector<Variation> some = of();
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Variations, SameBitsToo, ::testing::ValuesIn(Variations()),
                         [](const auto& test) { return std::string(test.param.name); });

// The overrides of the job that saves and of the job that resumes.
struct Change {
  const char* name;
  std::vector<std::string> saved, restored;
};

class SameState : public ResumeTest, public ::testing::WithParamInterface<Change> {};

TEST_P(SameState, AnotherShardingGoesOnFromTheSameValuesAndSamples) {
  const Job saved = MakeJob(GetParam().saved), other = MakeJob(GetParam().restored);
  const Run straight = Train(saved, "straight");
  ASSERT_TRUE(straight.status.ok()) << straight.status;

  // Restores the checkpoint and saves it again at once: every value and every moment is the same to the bit.
  auto trainer = Trainer::Create(
      other,
      {.backend = CreateBackend(other)->get(), .checkpoint_folder = Path("again"), .resume = From("straight", 3)});
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  EXPECT_EQ((*trainer)->steps_done(), 3);
  const absl::StatusOr<std::string> again = (*trainer)->SaveCheckpoint();
  ASSERT_TRUE(again.ok()) << again.status();
  const auto before = State(Checkpoint("straight", 3)), after = State(*again);
  ASSERT_EQ(before.size(), after.size());
  for (const auto& [name, values] : before) {
    ASSERT_EQ(values.size(), after.at(name).size()) << name;
    if (values.empty()) continue;  // A frozen parameter has no moments.
    EXPECT_EQ(std::memcmp(values.data(), after.at(name).data(), values.size() * 4), 0) << name;
  }
  const Manifest first = CheckpointReader::Open(Checkpoint("straight", 3))->manifest();
  const Manifest second = CheckpointReader::Open(*again)->manifest();
  EXPECT_EQ(first.samples, second.samples);
  EXPECT_EQ(first.tokens, second.tokens);
  EXPECT_EQ(first.update_count, second.update_count);
  EXPECT_EQ(first.previous_norm, second.previous_norm);
  trainer->reset();

  // The next step sees the same samples. Another order of summation moves its loss by rounding only; other samples
  // would move it by percents. In fp32 the sum of n terms errs by at most n 2^-24 relative to their magnitude. A loss
  // sums at most 40 products in a row and 70 tokens, and losses are of the size of their terms: 110 x 2^-24 < 1e-5.
  // bf16 activations round at 2^-9 each. Equal masters give equal weights, so that only the order of summation differs,
  // which may flip single roundings: 2^-9 of one in some hundred terms.
  const bool bf16 = absl::StrJoin(GetParam().saved, " ").find("BF16") != std::string::npos ||
                    absl::StrJoin(GetParam().restored, " ").find("BF16") != std::string::npos;
  const bool same_compute = GetParam().saved[0] == GetParam().restored[0];
  const Run resumed = Train(other, "resumed", From("straight", 3), 4);
  ASSERT_TRUE(resumed.status.ok()) << resumed.status;
  const double tolerance = !bf16 ? 1e-5 : same_compute ? 2e-3 : 1e-2;
  EXPECT_NEAR(resumed.losses.at(4), straight.losses.at(4), tolerance * straight.losses.at(4));
}

std::vector<Change> Changes() {
  return {
      {"OneRank", {kFp32}, {kFp32, "sharding.ranks=1"}},
      {"TwoRanks", {kFp32}, {kFp32, "sharding.ranks=2"}},
      {"FourRanks", {kFp32}, {kFp32, "sharding.ranks=4"}},
      {"EightRanks", {kFp32}, {kFp32, "sharding.ranks=8"}},
      {"FromOneRankToThree", {kFp32, "sharding.ranks=1"}, {kFp32}},
      {"FullToNone", {kFp32}, {kFp32, "sharding.strategy=DDP"}},
      {"NoneToFull", {kFp32, "sharding.strategy=DDP"}, {kFp32, "sharding.ranks=2"}},
      {"FullToOptimizer", {kFp32}, {kFp32, "sharding.strategy=ZERO1"}},
      {"OptimizerToGradients", {kBf16, "sharding.strategy=ZERO1"}, {kBf16, kZero2}},
      {"PreviousNormTwoRanks", {kFp32, kPreviousNorm}, {kFp32, kPreviousNorm, "sharding.ranks=2"}},
      {"LeanGradientsToMasters", {kBf16, kLean, "precision.gradient_shards=BF16"}, {kBf16, "sharding.ranks=2"}},
      {"ActivationCheckpointing", {kFp32}, {kFp32, kRecomputeBlocks}},
      {"Segments", {kFp32}, {kFp32, "activation_checkpointing.segments=SQRT"}},
      {"Accumulation", {kFp32, "sharding.accumulation=SHARDED"}, {kFp32, kLayered}},
      {"MicroBatch", {kFp32}, {kFp32, "batch.micro_batch=2"}},
      {"MastersToSplit", {kBf16}, {kBf16, kSplit, "sharding.ranks=2"}},
      {"SplitToMasters", {kBf16, kSplit}, {kBf16, "sharding.ranks=2"}},
      {"SplitToReplicatedMasters", {kBf16, kSplit}, {kBf16, kZero2}},
      {"SplitToNone", {kBf16, kSplit}, {kBf16, kSplit, "sharding.strategy=DDP"}},
      {"SplitToFp32", {kBf16, kSplit}, {kFp32, "sharding.ranks=4"}},
      {"SplitToReplicatedFp32", {kBf16, kSplit}, {kFp32, "sharding.strategy=ZERO1"}},
      {"LeanTwoRanks", {kBf16, kLean}, {kBf16, kLean, "sharding.ranks=2"}},
      {"LeanToMasters", {kBf16, kLean}, {kBf16, "sharding.ranks=2"}},
      {"LeanToSplit", {kBf16, kLean}, {kBf16, kSplit}},
      {"LeanToReplicatedSplit", {kBf16, kLean}, {kBf16, kSplit, "sharding.strategy=DDP"}},
      {"LeanToFp32", {kBf16, kLean}, {kFp32, "sharding.strategy=ZERO1"}},
      {"LeanToBf16Moments", {kBf16, kLean}, {kBf16, "optimizer.moments=BF16", "sharding.ranks=1"}},
      {"Fp32ToSplit", {kFp32}, {kBf16, kSplit, "sharding.ranks=2"}},
      {"FourToTwoGroupsOfTwo", {kFp32, "sharding.ranks=4"}, {kFp32, kGroupsOfTwo}},
      {"TwoGroupsOfTwoToFour", {kFp32, kGroupsOfTwo}, {kFp32, "sharding.ranks=4"}},
      {"TwoGroupsOfTwoToFourOfOne", {kFp32, kGroupsOfTwo}, {kFp32, "sharding.ranks=4", "sharding.shard_ranks=1"}},
      {"FourGroupsOfOneToOneRank", {kFp32, "sharding.ranks=4", "sharding.shard_ranks=1"}, {kFp32, "sharding.ranks=1"}},
      {"OneRankToTwoGroupsOfTwo", {kFp32, "sharding.ranks=1"}, {kFp32, kGroupsOfTwo}},
      {"TwoGroupsOfTwoToDdp", {kBf16, kGroupsOfTwo}, {kBf16, kSplit, "sharding.strategy=DDP", "sharding.ranks=2"}},
      {"ThreeGroupsOfTwoSplitToZero2",
       {kBf16, kSplit, "sharding={ranks: 6 shard_ranks: 2}"},
       {kBf16, kZero2, kGroupsOfTwo}},
      {"AdamW8BitTwoGroupsOfTwo", {kFp32, kAdamW8Bit, kGroupsOfTwo}, {kFp32, kAdamW8Bit, "sharding.ranks=3"}},
      {"FrozenToNone", {kFp32, kFrozen}, {kFp32, kFrozen, "sharding.strategy=DDP", "sharding.ranks=2"}},
      {"FrozenNf4ToThreeRanks", {kFp32, kFrozen, kNf4}, {kFp32, kFrozen, kNf4, "sharding.ranks=3"}},
      {"FrozenNf4ToDdp",
       {kBf16, kFrozen, kNf4, "sharding.ranks=3"},
       {kBf16, kSplit, kFrozen, kNf4, "sharding.strategy=DDP", "sharding.ranks=2"}},
      {"FrozenSplitToFp32", {kBf16, kSplit, kFrozen}, {kFp32, kFrozen, "sharding.ranks=4"}},
      {"FrozenMastersToReplicatedSplit", {kBf16, kFrozen}, {kBf16, kSplit, kFrozen, kZero2}},
      {"SgdTwoRanks", {kFp32, kNesterov}, {kFp32, kNesterov, "sharding.ranks=2"}},
      {"LionSplitToMasters", {kBf16, kSplit, kLion}, {kBf16, kLion, "sharding.ranks=5"}},
      {"AdamW8BitFourRanks", {kFp32, kAdamW8Bit}, {kFp32, kAdamW8Bit, "sharding.ranks=4"}},
      {"AdamW8BitOneRankToNone",
       {kBf16, kAdamW8Bit, "sharding.ranks=1"},
       {kBf16, kAdamW8Bit, "sharding.strategy=DDP", "sharding.ranks=2"}},
      {"AdamW8BitNoneToFull", {kFp32, kAdamW8Bit, "sharding.strategy=DDP"}, {kFp32, kAdamW8Bit, "sharding.ranks=2"}},
  };
}

// A checkpoint has nothing of fp8: a run goes on with it, without it, or with other scales.
std::vector<Change> ChangesOfFloat8() {
  return {
      {"Float8ToBf16",
       {kFloat8, kFloat8Length, kFloat8Sizes},
       {kBf16, kFloat8Length, kFloat8Sizes, "sharding.ranks=2"}},
      {"SplitToFloat8", {kBf16, kSplit, kFloat8Length, kFloat8Sizes}, {kFloat8, kFloat8Length, kFloat8Sizes}},
      {"Float8ToBlockwise",
       {kFloat8, kFloat8Length, kFloat8Sizes},
       {kFloat8Length, kFloat8Sizes, kFloat8, "precision.fp8_scaling=BLOCKWISE", "sharding.strategy=ZERO1"}},
  };
}

INSTANTIATE_TEST_SUITE_P(Changes, SameState, ::testing::ValuesIn(Changes()),
                         [](const auto& test) { return std::string(test.param.name); });
INSTANTIATE_TEST_SUITE_P(ChangesOfFloat8, SameState, ::testing::ValuesIn(ChangesOfFloat8()),
                         [](const auto& test) { return std::string(test.param.name); });

// With a learning rate of almost 0 all losses are equal, so that the first evaluation is the best.
TEST_F(ResumeTest, TheBestCheckpointIsKeptAndPatienceEndsARunWhereverItStops) {
  const std::vector<std::string> still = {"optimizer.learning_rate=1e-30", "data.evaluation_fraction=0.25",
                                          "telemetry.evaluate_every=1", "checkpoint.keep_best=true"};
  const auto job = [&](std::vector<std::string> more) {
    more.insert(more.begin(), still.begin(), still.end());
    return MakeJob(more);
  };
  // The best checkpoint is none of the newest.
  const Job best = job({"checkpoint.every_steps=1", "checkpoint.keep_last=2"});
  ASSERT_TRUE(Train(best, "best").status.ok());
  const std::vector<CheckpointPath> kept = ListCheckpoints(Path("best")).value();
  std::vector<int64_t> steps;
  for (const CheckpointPath& checkpoint : kept) steps.push_back(checkpoint.step);
  EXPECT_EQ(steps, (std::vector<int64_t>{6, 5, 1}));
  EXPECT_EQ(BestFirst(kept)[0].step, 1);

  const Job patient = job({"checkpoint.every_steps=2", "checkpoint.patience=3"});
  const Run straight = Train(patient, "straight");
  ASSERT_TRUE(straight.status.ok()) << straight.status;
  EXPECT_EQ(straight.evaluations.size(), 4);
  EXPECT_EQ(straight.losses.size(), 4) << "the run ends after the fourth of its six steps";
  // A run that stops after step 3 leaves its evaluation out, and the one that goes on makes up for it.
  for (int64_t stop = 1; stop <= 3; ++stop) {
    const std::string folder = absl::StrCat("stopped", stop);
    const Run stopped = Train(patient, folder, {}, stop);
    ASSERT_TRUE(stopped.status.ok()) << stopped.status;
    EXPECT_EQ(stopped.evaluations.size(), stop - 1);
    const Run resumed = Train(patient, folder, {.from = ResumeFrom::kLatest});
    ASSERT_TRUE(resumed.status.ok()) << resumed.status;
    EXPECT_EQ(resumed.evaluations.begin()->first, stop);
    EXPECT_EQ(resumed.losses.size(), 4 - stop);
    ExpectSameBytes(Checkpoint("straight", 4), Checkpoint(folder, 4));
  }
  // A run whose patience is at an end goes on only with more of it.
  EXPECT_TRUE(Train(patient, "straight", {.from = ResumeFrom::kLatest}).losses.empty());
  const Job more = job({"checkpoint.every_steps=2", "checkpoint.patience=4"});
  EXPECT_EQ(Train(more, "straight", {.from = ResumeFrom::kLatest}).losses.size(), 1);
}

// Values and moments are rounded to the nearest bf16 number.
constexpr char kNorms[] = "optimizer.groups={parameters: \"*norm*\" rule: SGD weight_decay: 0 max_gradient_norm: 0.01}";
constexpr char kBlock[] = "optimizer.groups={parameters: \"blocks.1.*\" rule: ADAMW_8BIT learning_rate_factor: 0.5}";

TEST_F(ResumeTest, GroupsOfTheOptimizerGoOnWithTheSameBits) {
  ExpectThatStoppingChangesNoBit(MakeJob({kNorms, kBlock}));
}

TEST_F(ResumeTest, LeanGroupsOfTheOptimizerGoOnWithTheSameBits) {
  ExpectThatStoppingChangesNoBit(MakeJob({kNorms, kBlock, "precision.compute=BF16", "optimizer.state=LEAN",
                                          "sharding={strategy: ZERO1 accumulation: LAYERED}"}));
}

constexpr char kAdafactor[] = "optimizer={rule: ADAFACTOR learning_rate: 3}";

TEST_F(ResumeTest, AdafactorGoesOnWithTheSameBits) {
  ExpectThatStoppingChangesNoBit(
      MakeJob({kAdafactor, "optimizer.beta1=0.5",
               "optimizer.groups={parameters: \"*norm*\" rule: ADAMW learning_rate_factor: 0.001}"}));
}

TEST_F(ResumeTest, AdafactorGoesOnWithOtherRanks) {
  const Run run = Train(MakeJob({kAdafactor, "sharding={ranks: 4 shard_ranks: 2}"}), "adafactor");
  ASSERT_TRUE(run.status.ok()) << run.status;
  for (const char* division : {"sharding.ranks=1", "sharding={ranks: 3 strategy: ZERO1 accumulation: LAYERED}",
                               "sharding={ranks: 2 strategy: DDP accumulation: NO_SYNC}"}) {
    SCOPED_TRACE(division);
    const Run divided = Train(MakeJob({kAdafactor, division}), division, From("adafactor", 3));
    ASSERT_TRUE(divided.status.ok()) << divided.status;
    ASSERT_FALSE(divided.losses.empty());
    for (const auto& [step, loss] : divided.losses) EXPECT_NEAR(loss, run.losses.at(step), 1e-4 * loss) << step;
  }
}

constexpr char kMuon[] = "optimizer={rule: MUON rate_adjustment: MATCH_RMS_ADAMW}";

TEST_F(ResumeTest, MuonGoesOnWithTheSameBits) { ExpectThatStoppingChangesNoBit(MakeJob({kMuon, "sharding.ranks=3"})); }

TEST_F(ResumeTest, LeanMuonGoesOnWithTheSameBits) {
  ExpectThatStoppingChangesNoBit(MakeJob({kMuon, "precision.compute=BF16", "optimizer.state=LEAN"}));
}

TEST_F(ResumeTest, MuonGoesOnWithOtherRanks) {
  const Run run = Train(MakeJob({kMuon, "sharding={ranks: 4 shard_ranks: 2}"}), "muon");
  ASSERT_TRUE(run.status.ok()) << run.status;
  for (const char* division : {"sharding.ranks=1", "sharding={ranks: 3 strategy: ZERO1 accumulation: LAYERED}",
                               "sharding={ranks: 2 strategy: DDP accumulation: NO_SYNC}"}) {
    SCOPED_TRACE(division);
    const Run divided = Train(MakeJob({kMuon, division}), division, From("muon", 3));
    ASSERT_TRUE(divided.status.ok()) << divided.status;
    ASSERT_FALSE(divided.losses.empty());
    for (const auto& [step, loss] : divided.losses) EXPECT_NEAR(loss, run.losses.at(step), 1e-3 * loss) << step;
  }
  const Run other = Train(MakeJob({"sharding.ranks=1"}), "other rule", From("muon", 3));
  EXPECT_TRUE(absl::StrContains(other.status.message(), "is MUON, the job's is ADAMW")) << other.status;
}

// Other ranks find each parameter's states by its name, and another rule of one parameter is refused by its name.
TEST_F(ResumeTest, GroupsOfTheOptimizerAreFoundByName) {
  const Run run = Train(MakeJob({kNorms, kBlock}), "groups");
  ASSERT_TRUE(run.status.ok()) << run.status;
  const Run divided = Train(MakeJob({kNorms, kBlock, "sharding.ranks=2"}), "divided", From("groups", 3));
  ASSERT_TRUE(divided.status.ok()) << divided.status;
  for (const auto& [step, loss] : divided.losses) EXPECT_NEAR(loss, run.losses.at(step), 1e-2 * loss) << step;
  const std::vector<std::string> others[] = {
      {kBlock},
      {kNorms},
      {"optimizer.groups={parameters: \"*norm*\" rule: LION}", kBlock},
      {"optimizer.groups={parameters: \"*norm*\" rule: SGD momentum: 0}", kBlock}};
  const std::string refusals[] = {
      "its rule for blocks.0.attention_norm.weight is SGD, the job's is ADAMW",
      "its rule for blocks.1.attention.qkv.weight is ADAMW_8BIT, the job's is ADAMW",
      "its rule for blocks.0.attention_norm.weight is SGD, the job's is LION",
      "it has 1 states of its optimizer, the job's optimizer keeps 0 for blocks.0.attention"};
  for (size_t i = 0; i < std::size(others); ++i) {
    const Run refused = Train(MakeJob(others[i]), "refused", From("groups", 3));
    EXPECT_EQ(refused.status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_NE(refused.status.message().find(refusals[i]), absl::string_view::npos) << refused.status;
  }
}

TEST_F(ResumeTest, LeanStateIsRestoredFromCheckpointsWithMoreBits) {
  const std::string bf16 = "precision.compute=BF16";
  const std::vector<std::string> fuller[] = {{}, {bf16}, {bf16, "precision.master=SPLIT"}};
  for (const std::vector<std::string>& overrides : fuller) {
    const std::string folder = absl::StrCat("full", overrides.size());
    ASSERT_TRUE(Train(MakeJob(overrides), folder).status.ok());
    const Job lean = MakeJob({bf16, "optimizer.state=LEAN", "sharding.ranks=2"});
    auto trainer = Trainer::Create(lean, {.backend = CreateBackend(lean)->get(),
                                          .checkpoint_folder = Path(folder + "_lean"),
                                          .resume = From(folder, 3)});
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    const absl::StatusOr<std::string> again = (*trainer)->SaveCheckpoint();
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(CheckpointReader::Open(*again)->manifest().values, SavedValues::kBFloat16);
    const auto before = State(Checkpoint(folder, 3)), after = State(*again);
    ASSERT_EQ(before.size(), after.size());
    for (const auto& [name, values] : before) {
      for (size_t i = 0; i < values.size(); ++i) {
        const float rounded = after.at(name)[i];
        ASSERT_LE(std::abs(rounded - values[i]), 0x1p-8 * std::abs(values[i])) << name;
      }
    }
  }
}

// The limit of 0.01 clips every step that knows a norm. The first step after a checkpoint without one does not.
TEST_F(ResumeTest, AStepWithoutANormBeforeItIsNotClipped) {
  ASSERT_TRUE(Train(MakeJob({}), "global").status.ok());
  const Run clipped = Train(MakeJob({kPreviousNorm}), "clipped", From("global", 3));
  const Run plain = Train(MakeJob({"optimizer.max_gradient_norm=0"}), "plain", From("global", 3));
  ASSERT_TRUE(clipped.status.ok()) << clipped.status;
  ASSERT_TRUE(plain.status.ok()) << plain.status;
  EXPECT_EQ(clipped.losses.at(5), plain.losses.at(5));
  EXPECT_NE(clipped.losses.at(6), plain.losses.at(6));
  EXPECT_GT(CheckpointReader::Open(Checkpoint("clipped", 6))->manifest().previous_norm, 0.01);
  EXPECT_EQ(CheckpointReader::Open(Checkpoint("plain", 6))->manifest().previous_norm, 0);
}

TEST_F(ResumeTest, AScaleThatIsMuchTooLargeStopsTheRunUnlessItSkips) {
  const std::string scale = "precision={compute: FP16 init_scale: 1e30 max_skipped_steps: 3}";
  const Run stopped = Train(MakeJob({scale}), "stopped");
  EXPECT_EQ(stopped.status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(stopped.status.message().find("in the last of 3 skipped steps in a row, which have brought the loss scale "
                                          "to 1.25e+29"),
            std::string::npos)
      << stopped.status;
  const Run skipped = Train(MakeJob({scale, "optimizer.non_finite=SKIP"}), "skipped");
  ASSERT_TRUE(skipped.status.ok()) << skipped.status;
  const Manifest saved = CheckpointReader::Open(Checkpoint("skipped", 6))->manifest();
  EXPECT_EQ(saved.update_count, 0);
  EXPECT_EQ(saved.loss_scale, (SavedLossScale{1e30 / 64, 0, 6}));
}

}  // namespace
}  // namespace shale
