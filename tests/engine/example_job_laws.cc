// Laws of whole jobs whose program brings model and data, for random settings of jobs of the example models: a run that
// stops and resumes has the bits of one that goes on, activation checkpointing changes no bit, ranks, micro-batches and
// accumulation change nothing but the order of sums, and the measured peak is the planned one. This is a library; each
// test links the backend that it tests.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "engine/api/data_source.h"
#include "engine/api/job.h"
#include "engine/api/trainer.h"
#include "gtest/gtest.h"
#include "tests/engine/example_models.h"
#include "tests/engine/job_harness.h"
#include "tests/engine/tested_backend.h"

namespace shale::testing {
namespace {

constexpr int64_t kLength = 7, kFloat8Length = 16, kSamples = 23, kGlobalBatch = 6;

// Reads one sequence after the other as a sample. A part that they do not have is empty.
class SequenceSource : public DataSource {
 public:
  SequenceSource(const Example& example, const Tokens& data, bool weighted)
      : DataSource({.name = example.name,
                    .samples = data.sequences,
                    .sequence_length = data.length,
                    .vocabulary = example.vocabulary,
                    .features = std::ssize(data.features) / (data.sequences * data.length),
                    .target_values = std::ssize(data.values) / (data.sequences * data.length),
                    .has_weights = weighted}),
        data_(data) {}

  absl::Status Read(int64_t sample, const SampleParts& out) override {
    const auto copy = [sample](const auto& from, auto to) {
      std::copy_n(from.begin() + sample * std::ssize(to), to.size(), to.begin());
    };
    copy(data_.inputs, out.inputs);
    copy(data_.features, out.features);
    copy(data_.targets, out.targets);
    copy(data_.values, out.target_values);
    copy(data_.weights, out.weights);
    return absl::OkStatus();
  }

 private:
  const Tokens data_;
};

struct RandomJob {
  const Example* example;
  int64_t blocks;
  bool weighted;
  bool narrow;                             // It computes in bf16 or fp16.
  bool float8 = false;                     // Its matmuls are in fp8.
  bool smooth = true;                      // Small differences of gradients make small differences of updates.
  std::vector<std::string> numbers;        // Settings that decide what is computed.
  std::vector<std::string> division;       // Those that divide it among ranks, micro-batches and time.
  std::vector<std::string> recomputation;  // Those of activation checkpointing.
};

// Draws the parts of a random job.
class Draw {
 public:
  explicit Draw(int seed) : random_(seed) {}

  int64_t Pick(int64_t n) { return static_cast<int64_t>(random_() % n); }
  const char* OneOf(std::initializer_list<const char*> names) { return names.begin()[Pick(std::ssize(names))]; }

 private:
  std::mt19937_64 random_;
};

// Draws number formats and what trains, which does not go with all of them.
void DrawPrecision(Draw& draw, RandomJob& job) {
  job.narrow = draw.Pick(3) != 0;
  const bool frozen = draw.Pick(4) == 0, halves = job.narrow && !frozen && draw.Pick(3) == 0;
  if (frozen) {
    job.numbers.push_back("optimizer.train_only=*norm.weight");  // Every example has some.
    job.numbers.push_back(absl::StrCat("optimizer.frozen_weights=", draw.OneOf({"AS_COMPUTED", "BF16", "NF4"})));
  }
  if (!job.narrow) return;
  job.float8 = job.example->float8_model != nullptr && draw.Pick(2);
  job.numbers.push_back(absl::StrCat(
      "precision={",
      halves ? "compute: FP16" : "compute: BF16 master: ", halves ? "" : draw.OneOf({"MASTER_FP32", "SPLIT"}),
      draw.Pick(2) && job.example->vocabulary > 0 ? " fp32_logits: true" : "",
      job.float8 ? absl::StrCat(" matmuls: FP8 fp8_gradients: ", draw.OneOf({"E4M3", "E5M2"}),
                                " fp8_scaling: ", draw.OneOf({"TENSORWISE", "BLOCKWISE"}))
                 : "",
      "}"));
}

// Draws the rule of the update, and groups with rules of their own.
void DrawUpdate(Draw& draw, RandomJob& job) {
  const absl::string_view rule = draw.OneOf({"ADAMW", "ADAMW", "SGD", "ADAFACTOR", "MUON"});
  if (rule != "ADAMW") {
    job.numbers.insert(job.numbers.end(), {"optimizer.epsilon=", absl::StrCat("optimizer.rule=", rule)});
  }
  if (rule == "SGD") job.numbers.push_back("optimizer.nesterov=true");
  job.smooth = rule != "MUON";  // It makes even the smallest singular values 1.
  if (draw.Pick(2)) return;
  job.numbers.push_back(
      "optimizer.groups={parameters: \"*norm*\" rule: SGD momentum: 0.5 learning_rate_factor: 0.25 "
      "max_gradient_norm: 0.05}");
  if (absl::StrContains(absl::StrJoin(job.numbers, " "), "train_only")) return;  // Nothing else trains.
  const absl::string_view other = draw.OneOf({"ADAMW epsilon: 1e-3", "SGD nesterov: true", "LION", "ADAMW_8BIT"});
  job.numbers.push_back(absl::StrCat("optimizer.groups={parameters: \"block*.weight\" rule: ", other,
                                     " learning_rate_factor: 0.5 weight_decay: 0}"));
  job.smooth = job.smooth && other != "LION" && other != "ADAMW_8BIT";
}

void DrawDivision(Draw& draw, RandomJob& job) {
  const Combination combination = AllCombinations()[draw.Pick(std::ssize(AllCombinations()))];
  const bool full = combination.strategy == Strategy::kFullShard;
  const int64_t ranks = 1 + draw.Pick(4);
  job.division = {absl::StrCat("sharding.strategy=", ToString(combination.strategy)),
                  absl::StrCat("sharding.accumulation=", ToString(combination.accumulation)),
                  absl::StrCat("sharding.ranks=", ranks), absl::StrCat("batch.micro_batch=", 1 + draw.Pick(3))};
  if (ranks == 4 && full && draw.Pick(2)) job.division.push_back("sharding.shard_ranks=2");
  if (full && draw.Pick(2)) job.division.push_back(absl::StrCat("sharding.prefetch=", draw.Pick(4)));
  if (full && draw.Pick(3) == 0) job.division.push_back("sharding.reshard_after_forward=false");
  if (combination.strategy != Strategy::kDdp && draw.Pick(3) == 0) {
    job.division.push_back("precision.reduce=BF16");
    job.smooth = false;  // One rank does not round its gradients.
  }
  if (TestsTheCudaBackend()) {
    job.division.push_back(absl::StrCat("runtime={device: CUDA ranks_per_device: ", ranks, "}"));
  }
}

RandomJob MakeRandomJob(int seed) {
  Draw draw(seed);
  RandomJob job;
  job.example = &Examples()[seed % std::ssize(Examples())];
  job.blocks = 1 + draw.Pick(4);
  job.weighted = draw.Pick(3) == 0 || job.example->weights != TargetWeights::kNone;
  if (job.weighted) {
    job.numbers.push_back(absl::StrCat("data.target_weights=", draw.OneOf({"OVER_TOKENS", "OVER_WEIGHTS"})));
  }
  DrawPrecision(draw, job);
  DrawUpdate(draw, job);
  DrawDivision(draw, job);

  job.recomputation = {absl::StrCat("activation_checkpointing.preset=",
                                    draw.OneOf({"NONE", "CHEAP", "ATTENTION", "FFN", "SUBLAYERS", "BLOCK"}))};
  if (draw.Pick(2)) {
    job.recomputation.push_back(absl::StrCat("activation_checkpointing.segment_blocks=", 1 + draw.Pick(job.blocks)));
  } else if (draw.Pick(2)) {
    job.recomputation.push_back("activation_checkpointing.every_nth=2");
  } else {
    job.recomputation.push_back(absl::StrCat("activation_checkpointing.recompute=", job.example->activation));
  }
  return job;
}

class ExampleJobs : public ::testing::TestWithParam<int> {
 protected:
  ExampleJobs() : random_(MakeRandomJob(GetParam())) {
    const Tokens data = random_.example->data(kSamples, Length());
    data_ = std::make_unique<SequenceSource>(*random_.example, data, random_.weighted);
  }

  int64_t Length() const { return random_.float8 ? kFloat8Length : kLength; }

  // Returns a job with the random numbers and these settings.
  Job MakeJob(const std::vector<std::string>& division, const std::vector<std::string>& recomputation = {}) const {
    std::vector<std::string> all = random_.numbers;
    for (const auto* more : {&division, &recomputation}) all.insert(all.end(), more->begin(), more->end());
    absl::StatusOr<Job> job =
        ParseJobText(absl::StrCat(R"(
batch { global_batch: )",
                                  kGlobalBatch, " micro_batch: 1 sequence_length: ", Length(), R"( }
optimizer { learning_rate: 1e-2 epsilon: 1e-3 }
lr_schedule { steps: 4 warmup_steps: 1 }
checkpoint { every_steps: 2 keep_last: 9 }
memory { budget_bytes: 100000000 }
)"),
                     "job.textproto", all, ModelFrom::kProgram);
    EXPECT_TRUE(job.ok()) << job.status();
    if (!job.ok()) return {};
    const auto make = random_.float8 ? random_.example->float8_model : random_.example->model;
    const absl::Status set = SetModel(make(random_.blocks), *job);
    EXPECT_TRUE(set.ok()) << set;
    return *job;
  }

  // Returns the losses of all steps. Expects that each step used the memory that was planned.
  std::vector<double> Losses(const Job& job, const std::string& folder = "", const ResumeOptions& resume = {}) const {
    const auto backend = TestedBackend(OpsKind::kFast, /*threads=*/1);
    const absl::StatusOr<std::unique_ptr<Trainer>> trainer = Trainer::Create(
        job, {.backend = backend.get(), .data = data_.get(), .checkpoint_folder = folder, .resume = resume});
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    if (!trainer.ok()) return {};
    std::vector<double> losses;
    const absl::Status status = (*trainer)->Run({.on_step = [&](const StepReport& report) {
      losses.push_back(report.loss);
      EXPECT_EQ(report.peak_bytes_measured, (*trainer)->plan().train.memory.peak_bytes);
      return absl::OkStatus();
    }});
    EXPECT_TRUE(status.ok()) << status;
    return losses;
  }

  const RandomJob random_;
  std::unique_ptr<SequenceSource> data_;
};

TEST_P(ExampleJobs, NeitherDivisionNorRecomputationNorAStopChangesWhatIsComputed) {
  SCOPED_TRACE(absl::StrCat(random_.example->name, ", ", random_.blocks,
                            " blocks: ", absl::StrJoin(random_.numbers, " "), " ", absl::StrJoin(random_.division, " "),
                            " ", absl::StrJoin(random_.recomputation, " ")));
  const std::string folder =
      absl::StrCat(::testing::TempDir(), "/example_jobs.", getpid(), ".", GetParam(), "/checkpoints");
  const Job job = MakeJob(random_.division, random_.recomputation);
  const std::vector<double> straight = Losses(job, folder);
  ASSERT_EQ(straight.size(), 4u);
  EXPECT_EQ(Losses(job, "", {.from = ResumeFrom::kPath, .path = folder + "/step-0000000002"}),
            std::vector<double>(straight.begin() + 2, straight.end()));
  EXPECT_EQ(Losses(MakeJob(random_.division)), straight) << "activation checkpointing changes bits";
  // One rank computes the global batch at once.
  std::vector<std::string> undivided = {absl::StrCat("batch.micro_batch=", kGlobalBatch)};
  if (TestsTheCudaBackend()) undivided.push_back("runtime.device=CUDA");
  const std::vector<double> one = Losses(MakeJob(undivided));
  ASSERT_EQ(one.size(), 4u);
  // fp32 sums of some hundred terms in another order, or 8 bits of precision, through four steps; through one step if a
  // small difference may grow.
  const double tolerance = random_.narrow ? 0.1 : 1e-4;
  const size_t compared = random_.smooth ? one.size() : 1;
  for (size_t i = 0; i < compared; ++i) EXPECT_NEAR(straight[i], one[i], tolerance * (1 + std::abs(one[i]))) << i;
}

INSTANTIATE_TEST_SUITE_P(Random, ExampleJobs, ::testing::Range(0, TestsEveryCombination() ? 18 : 4));

}  // namespace
}  // namespace shale::testing
