// Laws of saving and resuming: N steps, a checkpoint and N more steps equal 2N steps. The bits are equal if the job is
// unchanged. If it is sharded, accumulated or stored in another way, the restored state has the same bits, and later
// losses differ by rounding only.
#include "engine/train/resume.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/backends/job_backend.h"
#include "engine/checkpoint/reader.h"
#include "engine/checkpoint/store.h"
#include "engine/config/parse.h"
#include "engine/io/file.h"
#include "engine/train/trainer.h"

namespace shale {
namespace {

// ThreadSanitizer does not see the synchronization in OpenMP's library, which the fast ops use.
#ifdef __SANITIZE_THREAD__
constexpr char kOps[] = "runtime.ops=REFERENCE";
#else
constexpr char kOps[] = "runtime.ops=FAST";
#endif

constexpr char kGpt2[] = "decoder { family: GPT2 width: 24 layers: 2 heads: 2 hidden: 40 }";

class ResumeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = JoinPath(::testing::TempDir(), "resume_XXXXXX");
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    std::string text;
    for (int i = 0; i < 40; ++i) absl::StrAppend(&text, "the ", i * i % 97, " quick brown foxes jump over the dog.\n");
    ASSERT_TRUE(WriteFileDurably(Path("text"), text).ok());
  }
  std::string Path(absl::string_view name) const { return JoinPath(root_, name); }

  // Returns a job that is awkward on purpose: three ranks, a global batch that nothing divides, a parameter that two
  // units use.
  Job MakeJob(const std::vector<std::string>& overrides, absl::string_view model = kGpt2,
              absl::string_view length = "steps: 6") const {
    std::vector<std::string> all = {kOps};
    all.insert(all.end(), overrides.begin(), overrides.end());
    absl::StatusOr<Job> job = ParseJobText(
        absl::StrCat(R"(
batch { global_batch: 7 micro_batch: 1 sequence_length: 10 }
sharding { ranks: 3 }
optimizer { learning_rate: 1e-2 }
checkpoint { every_steps: 3 keep_last: 9 }
runtime { threads_per_rank: 1 }
model { )",
                     model, " } lr_schedule { warmup_steps: 2 ", length, " } data { path: \"", Path("text"), "\" }\n"),
        "job.textproto", all);
    EXPECT_TRUE(job.ok()) << job.status();
    return job.ok() ? *job : Job();
  }

  struct Run {
    absl::Status status;
    std::map<int64_t, double> losses;       // By step.
    std::map<int64_t, double> evaluations;  // By the step before the evaluation.
    int64_t tokens = 0;                     // After the last step.
    Resumed resumed;
  };
  // Trains a job to its end or to `last_step`. Its checkpoints go to `folder`.
  Run Train(const Job& job, const std::string& folder, const ResumeOptions& resume = {}, int64_t last_step = -1) {
    Run run;
    auto trainer = Trainer::Create(
        job, {.backend = CreateBackend(job)->get(), .checkpoint_folder = Path(folder), .resume = resume});
    if (!trainer.ok()) {
      run.status = trainer.status();
      return run;
    }
    run.resumed = (*trainer)->resumed();
    run.status = (*trainer)->Run({.on_step =
                                      [&](const StepReport& report) {
                                        run.losses[report.step] = report.loss;
                                        run.tokens = report.tokens;
                                        if (report.step == last_step) (*trainer)->RequestStop();
                                        return absl::OkStatus();
                                      },
                                  .on_evaluation =
                                      [&](const EvaluationReport& report) {
                                        run.evaluations[report.step] = report.loss;
                                        return absl::OkStatus();
                                      }});
    return run;
  }
  ResumeOptions From(const std::string& folder, int64_t step) const {
    return {.from = ResumeFrom::kPath, .path = Checkpoint(folder, step)};
  }
  std::string Checkpoint(const std::string& folder, int64_t step) const {
    return JoinPath(Path(folder), CheckpointFolderName(step));
  }

  // Returns everything that a checkpoint holds, whatever its form, as fp32 elements by parameter and part.
  std::map<std::string, std::vector<float>> State(const std::string& path) {
    absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(path);
    EXPECT_TRUE(reader.ok()) << reader.status();
    std::map<std::string, std::vector<float>> state;
    if (!reader.ok()) return state;
    CheckpointValues values(*reader);
    for (const SavedParameter& parameter : reader->manifest().parameters) {
      std::vector<float>& value = state[parameter.name];
      value.resize(parameter.elements());
      EXPECT_TRUE(values.Read(parameter.name, 0, absl::MakeSpan(value)).ok());
      const std::vector<SavedState>& states = reader->manifest().states;
      for (int64_t i = 0; i < std::ssize(states); ++i) {
        std::vector<float>& elements = state[absl::StrCat(parameter.name, " ", states[i].name)];
        elements.resize(reader->ElementsOf(StatePart(i), parameter));
        EXPECT_TRUE(values.Read(StatePart(i), parameter.name, 0, absl::MakeSpan(elements)).ok());
      }
    }
    return state;
  }

  void ExpectSameBytes(const std::string& a, const std::string& b) {
    const absl::StatusOr<std::vector<std::string>> names = ListFolder(a), others = ListFolder(b);
    ASSERT_TRUE(names.ok()) << names.status();
    ASSERT_TRUE(others.ok()) << others.status();
    EXPECT_EQ(*names, *others);
    for (const std::string& name : *names) {
      EXPECT_TRUE(*ReadFile(JoinPath(a, name), 1 << 30) == *ReadFile(JoinPath(b, name), 1 << 30)) << name;
    }
  }

  // Expects that stopping and resuming changes no bit. REQUIRES: the job has six steps.
  void ExpectThatStoppingChangesNoBit(const Job& job) {
    const Run straight = Train(job, "straight");
    ASSERT_TRUE(straight.status.ok()) << straight.status;
    ASSERT_EQ(straight.losses.size(), 6);
    // The checkpoint of step 3 may be written while step 4 runs. Resuming discards what step 4 made of the state.
    ASSERT_TRUE(Train(job, "stopped", {}, 4).status.ok());
    const Run resumed = Train(job, "resumed", From("stopped", 3));
    ASSERT_TRUE(resumed.status.ok()) << resumed.status;
    EXPECT_EQ(resumed.resumed.manifest.step, 3);
    ASSERT_EQ(resumed.losses.size(), 3);
    for (const auto& [step, loss] : resumed.losses) EXPECT_EQ(loss, straight.losses.at(step)) << "step " << step;
    for (const auto& [step, loss] : resumed.evaluations) {
      EXPECT_EQ(loss, straight.evaluations.at(step)) << "after step " << step;
    }
    EXPECT_EQ(resumed.evaluations.empty(), straight.evaluations.empty());
    EXPECT_EQ(resumed.tokens, straight.tokens);
    // Weights, masters, moments, counters: the checkpoints of the last step are the same files.
    ExpectSameBytes(Checkpoint("straight", 6), Checkpoint("resumed", 6));
    ExpectSameBytes(Checkpoint("straight", 3), Checkpoint("stopped", 3));
  }

  std::string root_;
};

struct Sharding {
  const char* strategy;
  const char* accumulation;
};
constexpr Sharding kShardings[] = {{"DDP", "NO_SYNC"},        {"DDP", "LAYERED"},        {"ZERO1", "NO_SYNC"},
                                   {"ZERO1", "LAYERED"},      {"ZERO2", "SHARDED"},      {"ZERO2", "LAYERED"},
                                   {"FULL_SHARD", "SHARDED"}, {"FULL_SHARD", "NO_SYNC"}, {"FULL_SHARD", "LAYERED"}};
const std::vector<std::string> kPrecisions[] = {
    {"precision.compute=FP32"}, {"precision.compute=BF16"}, {"precision.compute=BF16", "precision.master=SPLIT"}};

class SameBits : public ResumeTest, public ::testing::WithParamInterface<std::tuple<int, int, bool>> {
 protected:
  std::vector<std::string> Overrides() const {
    const auto [sharding, precision, asynchronous] = GetParam();
    std::vector<std::string> all = kPrecisions[precision];
    all.push_back(absl::StrCat("sharding.strategy=", kShardings[sharding].strategy));
    all.push_back(absl::StrCat("sharding.accumulation=", kShardings[sharding].accumulation));
    all.push_back(absl::StrCat("checkpoint.asynchronous=", asynchronous ? "true" : "false"));
    return all;
  }
};

TEST_P(SameBits, StoppingAndGoingOnChangesNone) { ExpectThatStoppingChangesNoBit(MakeJob(Overrides())); }

std::string NameOf(const std::tuple<int, int, bool>& parameter) {
  const auto [sharding, precision, asynchronous] = parameter;
  constexpr const char* kNames[] = {"Fp32", "Bf16", "Split"};
  return absl::StrCat(kShardings[sharding].strategy, "_", kShardings[sharding].accumulation, "_", kNames[precision],
                      asynchronous ? "_Asynchronous" : "_Blocking");
}

INSTANTIATE_TEST_SUITE_P(Jobs, SameBits,
                         ::testing::Combine(::testing::Range(0, static_cast<int>(std::size(kShardings))),
                                            ::testing::Range(0, static_cast<int>(std::size(kPrecisions))),
                                            ::testing::Bool()),
                         [](const auto& test) { return NameOf(test.param); });

constexpr char kNesterov[] = "optimizer={rule: SGD learning_rate: 0.05 nesterov: true}";
constexpr char kLion[] = "optimizer={rule: LION learning_rate: 1e-3}";
constexpr char kLean[] = "optimizer.state=LEAN";
constexpr char kGroupsOfTwo[] = "sharding={ranks: 4 shard_ranks: 2}";
constexpr char kPreviousNorm[] =
    "optimizer={learning_rate: 1e-2 clipping: PREVIOUS_NORM max_gradient_norm: 0.01 non_finite: SKIP}";
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

std::vector<Variation> Variations() {
  // The head is not tied to the embedding, and four heads share two keys and values.
  static constexpr char kLlama[] = "decoder { family: LLAMA width: 24 layers: 2 heads: 4 kv_heads: 2 hidden: 40 }";
  static constexpr char kMlp[] = "mlp { embedding: 5 hidden: 13 layers: 2 }";
  const std::string bf16 = "precision.compute=BF16", split = "precision.master=SPLIT", fp32 = "precision.compute=FP32",
                    layered = "sharding.accumulation=LAYERED", block = "activation_checkpointing.preset=BLOCK",
                    gradients = "sharding.strategy=ZERO2";
  // With both, the last evaluation follows the last step.
  const std::string held_out = "data.evaluation_fraction=0.25", evaluate = "telemetry.evaluate_every=2";
  // The text has 175 samples. Two and a half epochs are five batches of 85 and one of 13, and the checkpoint after the
  // third batch lies in the second epoch.
  const std::string batch = "batch.global_batch=85";
  static constexpr char kEpochs[] = "epochs: 2.5";
  return {
      {"Llama", kLlama, {fp32}},
      {"LlamaSplit", kLlama, {bf16, split}},
      {"LlamaLayered", kLlama, {bf16, layered}},
      {"LlamaReplicated", kLlama, {bf16, split, gradients}},
      {"Mlp", kMlp, {fp32}},
      {"MlpSplit", kMlp, {bf16, split, gradients}},
      {"Block", kGpt2, {bf16, block}},
      {"BlockLayered", kLlama, {bf16, split, block, layered}},
      {"Evaluation", kGpt2, {bf16, held_out, evaluate}},
      {"EvaluationSplit", kLlama, {bf16, split, held_out, evaluate, gradients}},
      {"Sgd", kGpt2, {bf16, kNesterov}},
      {"SgdWithoutMomentum", kLlama, {fp32, "optimizer={rule: SGD momentum: 0}"}},
      {"LionSplit", kLlama, {bf16, split, kLion}},
      {"Lean", kGpt2, {bf16, kLean}},
      {"LeanLayeredOneRank", kLlama, {bf16, kLean, layered, "sharding.ranks=1"}},
      {"LeanReplicatedBlocking", kMlp, {bf16, kLean, "sharding.strategy=DDP", "checkpoint.asynchronous=false"}},
      {"LeanLionGroupsOfTwo", kGpt2, {bf16, "optimizer={rule: LION learning_rate: 1e-3 state: LEAN}", kGroupsOfTwo}},
      {"LeanAdamW8Bit", kLlama, {bf16, "optimizer={rule: ADAMW_8BIT learning_rate: 1e-2 state: LEAN}", gradients}},
      {"Bf16Moments", kLlama, {fp32, "optimizer.moments=BF16"}},
      {"LeanGradients", kGpt2, {bf16, kLean, "precision.gradient_shards=BF16", "sharding.accumulation=SHARDED"}},
      {"GradientsOneRank", kLlama, {fp32, "precision.gradient_shards=BF16", "sharding.ranks=1", layered}},
      {"PreviousNorm", kGpt2, {fp32, kPreviousNorm, kGroupsOfTwo}},
      {"PreviousNormInBackward", kLlama, {bf16, split, kPreviousNorm, "optimizer.update=IN_BACKWARD"}},
      {"LionReplicated", kGpt2, {fp32, kLion, "sharding.strategy=DDP"}},
      {"GroupsOfTwo", kGpt2, {fp32, kGroupsOfTwo}},
      {"GroupsOfTwoSplitLayered", kLlama, {bf16, kGroupsOfTwo, split, layered}},
      {"GroupsOfOne", kGpt2, {bf16, "sharding.shard_ranks=1"}},
      {"AdamW8BitGroupsOfTwo", kLlama, {fp32, kAdamW8Bit, kGroupsOfTwo, gradients}},
      {"AdamW8Bit", kGpt2, {fp32, kAdamW8Bit}},
      {"AdamW8BitSplitLayered", kLlama, {bf16, split, layered, kAdamW8Bit}},
      {"AdamW8BitBlocking", kMlp, {bf16, gradients, kAdamW8Bit, "checkpoint.asynchronous=false"}},
      {"Epochs", kGpt2, {fp32, batch}, kEpochs},
      {"EpochsSplit", kLlama, {bf16, split, batch, "batch.micro_batch=3"}, kEpochs}};
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
  const std::string fp32 = "precision.compute=FP32", bf16 = "precision.compute=BF16", split = "precision.master=SPLIT";
  std::vector<Change> changes = {
      {"OneRank", {fp32}, {fp32, "sharding.ranks=1"}},
      {"TwoRanks", {fp32}, {fp32, "sharding.ranks=2"}},
      {"FourRanks", {fp32}, {fp32, "sharding.ranks=4"}},
      {"EightRanks", {fp32}, {fp32, "sharding.ranks=8"}},
      {"FromOneRankToThree", {fp32, "sharding.ranks=1"}, {fp32}},
      {"FullToNone", {fp32}, {fp32, "sharding.strategy=DDP"}},
      {"NoneToFull", {fp32, "sharding.strategy=DDP"}, {fp32, "sharding.ranks=2"}},
      {"FullToOptimizer", {fp32}, {fp32, "sharding.strategy=ZERO1"}},
      {"OptimizerToGradients", {bf16, "sharding.strategy=ZERO1"}, {bf16, "sharding.strategy=ZERO2"}},
      {"PreviousNormTwoRanks", {fp32, kPreviousNorm}, {fp32, kPreviousNorm, "sharding.ranks=2"}},
      {"LeanGradientsToMasters", {bf16, kLean, "precision.gradient_shards=BF16"}, {bf16, "sharding.ranks=2"}},
      {"ActivationCheckpointing", {fp32}, {fp32, "activation_checkpointing.preset=BLOCK"}},
      {"Segments", {fp32}, {fp32, "activation_checkpointing.segments=SQRT"}},
      {"Accumulation", {fp32, "sharding.accumulation=SHARDED"}, {fp32, "sharding.accumulation=LAYERED"}},
      {"MicroBatch", {fp32}, {fp32, "batch.micro_batch=2"}},
      {"MastersToSplit", {bf16}, {bf16, split, "sharding.ranks=2"}},
      {"SplitToMasters", {bf16, split}, {bf16, "sharding.ranks=2"}},
      {"SplitToReplicatedMasters", {bf16, split}, {bf16, "sharding.strategy=ZERO2"}},
      {"SplitToNone", {bf16, split}, {bf16, split, "sharding.strategy=DDP"}},
      {"SplitToFp32", {bf16, split}, {fp32, "sharding.ranks=4"}},
      {"SplitToReplicatedFp32", {bf16, split}, {fp32, "sharding.strategy=ZERO1"}},
      {"LeanTwoRanks", {bf16, kLean}, {bf16, kLean, "sharding.ranks=2"}},
      {"LeanToMasters", {bf16, kLean}, {bf16, "sharding.ranks=2"}},
      {"LeanToSplit", {bf16, kLean}, {bf16, split}},
      {"LeanToReplicatedSplit", {bf16, kLean}, {bf16, split, "sharding.strategy=DDP"}},
      {"LeanToFp32", {bf16, kLean}, {fp32, "sharding.strategy=ZERO1"}},
      {"LeanToBf16Moments", {bf16, kLean}, {bf16, "optimizer.moments=BF16", "sharding.ranks=1"}},
      {"Fp32ToSplit", {fp32}, {bf16, split, "sharding.ranks=2"}},
      {"FourToTwoGroupsOfTwo", {fp32, "sharding.ranks=4"}, {fp32, kGroupsOfTwo}},
      {"TwoGroupsOfTwoToFour", {fp32, kGroupsOfTwo}, {fp32, "sharding.ranks=4"}},
      {"TwoGroupsOfTwoToFourOfOne", {fp32, kGroupsOfTwo}, {fp32, "sharding.ranks=4", "sharding.shard_ranks=1"}},
      {"FourGroupsOfOneToOneRank", {fp32, "sharding.ranks=4", "sharding.shard_ranks=1"}, {fp32, "sharding.ranks=1"}},
      {"OneRankToTwoGroupsOfTwo", {fp32, "sharding.ranks=1"}, {fp32, kGroupsOfTwo}},
      {"TwoGroupsOfTwoToDdp", {bf16, kGroupsOfTwo}, {bf16, split, "sharding.strategy=DDP", "sharding.ranks=2"}},
      {"ThreeGroupsOfTwoSplitToZero2",
       {bf16, split, "sharding={ranks: 6 shard_ranks: 2}"},
       {bf16, "sharding.strategy=ZERO2", kGroupsOfTwo}},
      {"AdamW8BitTwoGroupsOfTwo", {fp32, kAdamW8Bit, kGroupsOfTwo}, {fp32, kAdamW8Bit, "sharding.ranks=3"}},
      {"SgdTwoRanks", {fp32, kNesterov}, {fp32, kNesterov, "sharding.ranks=2"}},
      {"LionSplitToMasters", {bf16, split, kLion}, {bf16, kLion, "sharding.ranks=5"}},
      {"AdamW8BitFourRanks", {fp32, kAdamW8Bit}, {fp32, kAdamW8Bit, "sharding.ranks=4"}},
      {"AdamW8BitOneRankToNone",
       {bf16, kAdamW8Bit, "sharding.ranks=1"},
       {bf16, kAdamW8Bit, "sharding.strategy=DDP", "sharding.ranks=2"}},
      {"AdamW8BitNoneToFull", {fp32, kAdamW8Bit, "sharding.strategy=DDP"}, {fp32, kAdamW8Bit, "sharding.ranks=2"}},
  };
  return changes;
}

INSTANTIATE_TEST_SUITE_P(Changes, SameState, ::testing::ValuesIn(Changes()),
                         [](const auto& test) { return std::string(test.param.name); });

// Values and moments are rounded to the nearest bf16 number.
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

TEST_F(ResumeTest, TheNewestWholeCheckpointIsTakenAndADamagedOneNamed) {
  const Job job = MakeJob({});
  ASSERT_TRUE(Train(job, "run").status.ok());
  const std::string shard = JoinPath(Checkpoint("run", 6), ShardFileName(1, 3));
  ASSERT_EQ(truncate(shard.c_str(), 5000), 0);
  const Run resumed = Train(job, "run", {.from = ResumeFrom::kLatest});
  ASSERT_TRUE(resumed.status.ok()) << resumed.status;
  EXPECT_EQ(resumed.resumed.path, Checkpoint("run", 3));
  ASSERT_EQ(resumed.resumed.passed_over.size(), 1);
  EXPECT_NE(resumed.resumed.passed_over[0].find(shard + " has 5000 bytes"), std::string::npos);
  // The resumed run has written it again.
  EXPECT_TRUE(CheckpointReader::Open(Checkpoint("run", 6)).ok());
  // A damaged checkpoint that is asked for by name is refused.
  ASSERT_EQ(truncate(shard.c_str(), 5000), 0);
  const absl::Status refused = Train(job, "run", From("run", 6)).status;
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(
      std::string(refused.message()).find("; --resume=latest takes the newest intact checkpoint of the run folder"),
      std::string::npos)
      << refused;
}

TEST_F(ResumeTest, AnEarlierCheckpointIsGoneOnFromInAnotherFolder) {
  const Job job = MakeJob({});
  ASSERT_TRUE(Train(job, "run").status.ok());
  const absl::Status refused = Train(job, "run", From("run", 3)).status;
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(std::string(refused.message()).find("in a folder that holds " + Checkpoint("run", 6)), std::string::npos)
      << refused;
  const Run other = Train(job, "other", From("run", 3));
  ASSERT_TRUE(other.status.ok()) << other.status;
  ExpectSameBytes(Checkpoint("run", 6), Checkpoint("other", 6));
  // The checkpoints of two runs are not mixed either.
  EXPECT_EQ(Train(job, "other", From("run", 6)).status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Train(job, "run").status.code(), absl::StatusCode::kFailedPrecondition);
  // A checkpoint that cannot be read is not in the way.
  ASSERT_EQ(truncate(JoinPath(Checkpoint("run", 6), "MANIFEST").c_str(), 10), 0);
  EXPECT_TRUE(Train(job, "run", From("run", 3)).status.ok());
}

// Without a copy of that checkpoint, a run that is killed before its first save would start from scratch, or continue
// from what lay in the folder.
TEST_F(ResumeTest, ARunThatGoesOnFromAnothersCheckpointHasItAtOnce) {
  const Job job = MakeJob({});
  ASSERT_TRUE(Train(job, "run").status.ok());
  ASSERT_TRUE(
      Trainer::Create(
          job, {.backend = CreateBackend(job)->get(), .checkpoint_folder = Path("branch"), .resume = From("run", 3)})
          .ok());
  const Run resumed = Train(job, "branch", {.from = ResumeFrom::kLatestOrStart});
  ASSERT_TRUE(resumed.status.ok()) << resumed.status;
  EXPECT_EQ(resumed.resumed.path, Checkpoint("branch", 3));
  ExpectSameBytes(Checkpoint("run", 6), Checkpoint("branch", 6));
}

TEST_F(ResumeTest, ARunThatWasStoppedBeforeItsFirstStepGoesOnFromThere) {
  const Job job = MakeJob({});
  ASSERT_TRUE(Train(job, "straight").status.ok());
  {
    auto trainer = Trainer::Create(job, {.backend = CreateBackend(job)->get(), .checkpoint_folder = Path("run")});
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    (*trainer)->RequestStop();
    ASSERT_TRUE((*trainer)->Run({}).ok());
  }
  const Run resumed = Train(job, "run", {.from = ResumeFrom::kLatest});
  ASSERT_TRUE(resumed.status.ok()) << resumed.status;
  EXPECT_EQ(resumed.resumed.path, Checkpoint("run", 0));
  ExpectSameBytes(Checkpoint("straight", 6), Checkpoint("run", 6));
}

// Only reading the payload shows the damage.
TEST_F(ResumeTest, ADamagedCheckpointThatWasPassedOverPushesNoneOut) {
  ASSERT_TRUE(Train(MakeJob({}), "run").status.ok());
  const std::string shard = JoinPath(Checkpoint("run", 6), ShardFileName(1, 3));
  std::string bytes = *ReadFile(shard, 1 << 24);
  bytes.back() ^= 1;
  ASSERT_TRUE(WriteFileDurably(shard, bytes).ok());
  const Job longer = MakeJob({"lr_schedule.steps=8", "checkpoint.every_steps=4", "checkpoint.keep_last=2"});
  const Run resumed = Train(longer, "run", {.from = ResumeFrom::kLatest});
  ASSERT_TRUE(resumed.status.ok()) << resumed.status;
  EXPECT_EQ(resumed.resumed.path, Checkpoint("run", 3));
  EXPECT_TRUE(CheckpointReader::Open(Checkpoint("run", 4)).ok());
  EXPECT_TRUE(CheckpointReader::Open(Checkpoint("run", 8)).ok());
}

TEST_F(ResumeTest, NothingBeginsAnewOverARunWhoseCheckpointsAreAllDamaged) {
  const Job job = MakeJob({});
  EXPECT_EQ(Train(job, "run", {.from = ResumeFrom::kLatest}).status.code(), absl::StatusCode::kNotFound);
  const Run first = Train(job, "run", {.from = ResumeFrom::kLatestOrStart});
  ASSERT_TRUE(first.status.ok()) << first.status;
  EXPECT_EQ(first.resumed.path, "");
  for (int64_t step : {3, 6}) ASSERT_EQ(truncate(JoinPath(Checkpoint("run", step), "MANIFEST").c_str(), 10), 0);
  const absl::Status status = Train(job, "run", {.from = ResumeFrom::kLatestOrStart}).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(std::string(status.message()).find("every checkpoint in " + Path("run") + " is damaged"),
            std::string::npos);
}

TEST_F(ResumeTest, AnotherRunIsRefusedWithTheFirstDifference) {
  const Job job = MakeJob({});
  ASSERT_TRUE(Train(job, "run", {}, 3).status.ok());
  std::string longer = *ReadFile(Path("text"), 1 << 20) + "and one more line, for another sample or two.\n";
  ASSERT_TRUE(WriteFileDurably(Path("longer"), longer).ok());
  const auto refusal = [&](const std::vector<std::string>& overrides) {
    const absl::Status status = Train(MakeJob(overrides), "run", {.from = ResumeFrom::kLatest}).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    return std::string(status.message());
  };
  const auto expect = [&](const std::vector<std::string>& overrides, const std::string& part) {
    const std::string message = refusal(overrides);
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect({"model.decoder.layers=3"}, "it has \"layers: 2\", the job's model \"layers: 3\"");
  expect({"model.decoder.norm_epsilon=1e-4"}, "norm_epsilon: 1e-05");
  expect({"model.decoder.max_positions=16"}, "max_positions: 10");
  expect({"batch.sequence_length=9", "model.decoder.max_positions=10"}, "batch.sequence_length is 10, the job's 9");
  expect({"data.path=" + Path("longer")}, "samples, data.path has");
  expect({"data.order=SEQUENTIAL"}, "data.order is SHUFFLED");
  expect({"data.seed=2"}, "data.seed is 1, the job's 2");
  expect({"optimizer.rule=LION"}, "its optimizer.rule is ADAMW, the job's is LION");
  // Fields that only steer the training may change.
  const Run prolonged =
      Train(MakeJob({"lr_schedule.steps=8", "optimizer.learning_rate=1e-3", "batch.global_batch=5", "runtime.seed=9"}),
            "run", {.from = ResumeFrom::kLatest});
  EXPECT_TRUE(prolonged.status.ok()) << prolonged.status;
  EXPECT_EQ(prolonged.losses.size(), 5);
}

TEST_F(ResumeTest, ARunThatIsAtItsEndHasNothingToDo) {
  const Job job = MakeJob({});
  ASSERT_TRUE(Train(job, "run").status.ok());
  const std::string before = *ReadFile(JoinPath(Checkpoint("run", 6), "MANIFEST"), 1 << 20);
  const Run again = Train(job, "run", {.from = ResumeFrom::kLatest});
  EXPECT_TRUE(again.status.ok()) << again.status;
  EXPECT_TRUE(again.losses.empty());
  EXPECT_EQ(*ReadFile(JoinPath(Checkpoint("run", 6), "MANIFEST"), 1 << 20), before);
}

TEST_F(ResumeTest, ARunInEpochsGoesOnWhereItsDataStood) {
  const std::vector<std::string> overrides = {"checkpoint.every_steps=5"};
  absl::StatusOr<Job> job = ParseJobText(
      absl::StrCat("model { mlp { embedding: 4 hidden: 12 } } batch { global_batch: 11 sequence_length: 8 } ",
                   "lr_schedule { epochs: 1.5 } checkpoint { every_steps: 5 keep_last: 100 } sharding { ranks: 2 } ",
                   "runtime { threads_per_rank: 1 } data { path: \"", Path("text"), "\" }"),
      "job", std::vector<std::string>{kOps});
  ASSERT_TRUE(job.ok()) << job.status();
  const Run straight = Train(*job, "straight");
  ASSERT_TRUE(straight.status.ok()) << straight.status;
  const Run resumed = Train(*job, "resumed", From("straight", 10));
  ASSERT_TRUE(resumed.status.ok()) << resumed.status;
  EXPECT_EQ(resumed.losses.rbegin()->first, straight.losses.rbegin()->first);
  for (const auto& [step, loss] : resumed.losses) EXPECT_EQ(loss, straight.losses.at(step)) << step;
  EXPECT_EQ(resumed.tokens, straight.tokens);
}

// A run in epochs sees each sample equally often, however large its batches become.
TEST_F(ResumeTest, ARunInEpochsEndsWithItsDataWhateverItsBatchBecomes) {
  const auto make = [&](int batch) {
    const absl::StatusOr<Job> job = ParseJobText(
        absl::StrCat("model { mlp { embedding: 4 hidden: 12 } } batch { global_batch: ", batch,
                     " sequence_length: 8 } ",
                     "lr_schedule { epochs: 1 } checkpoint { every_steps: 5 keep_last: 100 } ",
                     "runtime { threads_per_rank: 1 } data { path: \"", Path("text"), "\" evaluation_fraction: 0.1 }"),
        "job", std::vector<std::string>{kOps});
    EXPECT_TRUE(job.ok()) << job.status();
    return *job;
  };
  const Run straight = Train(make(8), "straight");
  ASSERT_TRUE(straight.status.ok()) << straight.status;
  for (const int batch : {3, 16}) {
    const std::string folder = absl::StrCat("batch", batch);
    const Job job = make(batch);
    auto trainer = Trainer::Create(
        job, {.backend = CreateBackend(job)->get(), .checkpoint_folder = Path(folder), .resume = From("straight", 5)});
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    int64_t tokens = 0, evaluated_after = 0;
    const absl::Status status = (*trainer)->Run({.on_step =
                                                     [&](const StepReport& report) {
                                                       tokens = report.tokens;
                                                       return absl::OkStatus();
                                                     },
                                                 .on_evaluation =
                                                     [&](const EvaluationReport& report) {
                                                       evaluated_after = report.step;
                                                       return absl::OkStatus();
                                                     }});
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(tokens, straight.tokens);
    EXPECT_EQ(evaluated_after, (*trainer)->total_steps());
    EXPECT_EQ((*trainer)->steps_done(), (*trainer)->total_steps());
  }
}

// Returns how many bytes this process has read from files so far.
int64_t BytesRead() {
  std::ifstream io("/proc/self/io");
  std::string field;
  int64_t bytes = -1;
  io >> field >> bytes;
  return field == "rchar:" ? bytes : -1;
}

TEST_F(ResumeTest, EachByteIsReadOnceByTheRankThatNeedsIt) {
  const Job job = MakeJob({"model.decoder.width=96", "model.decoder.vocabulary=4096"});
  ASSERT_TRUE(Train(job, "run", {}, 3).status.ok());
  const auto read_by = [&](const ResumeOptions& resume) {
    const int64_t before = BytesRead();
    EXPECT_TRUE(Trainer::Create(job, {.backend = CreateBackend(job)->get(), .resume = resume}).ok());
    return BytesRead() - before;
  };
  const CheckpointReader checkpoint = *CheckpointReader::Open(Checkpoint("run", 3));
  // Both runs read the data. The heads of a checkpoint are read twice, once to be checked and once with the first
  // chunk.
  const int64_t more = read_by(From("run", 3)) - read_by({});
  EXPECT_GE(more, checkpoint.size_bytes());
  EXPECT_LE(more, checkpoint.size_bytes() + (32 << 10));
  EXPECT_GT(checkpoint.size_bytes(), 1 << 20);
}

TEST_F(ResumeTest, TheSnapshotIsALineOfThePlan) {
  const auto arena = [&](const std::vector<std::string>& overrides, int64_t* snapshot) {
    auto trainer = Trainer::Create(MakeJob(overrides), {.backend = CreateBackend(MakeJob(overrides))->get()});
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    *snapshot = (*trainer)->plan().train.memory.bytes_at_peak[static_cast<int>(BufferCategory::kSnapshot)];
    return (*trainer)->plan().arena_bytes;
  };
  int64_t with = 0, without = 0, only_at_end = 0;
  const int64_t more = arena({}, &with) - arena({"checkpoint.asynchronous=false"}, &without);
  arena({"checkpoint.every_steps=0"}, &only_at_end);
  EXPECT_EQ(without, 0);
  EXPECT_EQ(only_at_end, 0);
  EXPECT_GT(with, 0);
  EXPECT_EQ(more, with);
}

}  // namespace
}  // namespace shale
