// What tests of saving and resuming share: a job, and what its runs and checkpoints hold.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/api/backend.h"
#include "engine/api/checkpoint.h"
#include "engine/api/job.h"
#include "engine/api/trainer.h"
#include "engine/files/checkpoint/store.h"
#include "engine/files/io/file.h"
#include "engine/run/train/starting_state.h"

namespace shale {

inline constexpr char kGpt2[] = "decoder { family: GPT2 width: 24 layers: 2 heads: 2 hidden: 40 }";

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
    absl::StatusOr<Job> job = ParseJobText(
        absl::StrCat(R"(
batch { global_batch: 7 micro_batch: 1 sequence_length: 10 }
sharding { ranks: 3 }
optimizer { learning_rate: 1e-2 }
checkpoint { every_steps: 3 keep_last: 9 }
runtime { threads_per_rank: 1 }
model { )",
                     model, " } lr_schedule { warmup_steps: 2 ", length, " } data { path: \"", Path("text"), "\" }\n"),
        "job.textproto", overrides);
    EXPECT_TRUE(job.ok()) << job.status();
    return job.ok() ? *job : Job();
  }

  // Returns the job of a text that has no model, with a model that the test brings.
  static Job MakeCustomJob(const CustomModel& model, absl::string_view text,
                           const std::vector<std::string>& overrides) {
    absl::StatusOr<Job> job = ParseJobText(text, "job.textproto", overrides, ModelFrom::kProgram);
    EXPECT_TRUE(job.ok()) << job.status();
    if (!job.ok()) return {};
    const absl::Status set = SetModel(model, *job);
    EXPECT_TRUE(set.ok()) << set;
    return *job;
  }

  struct Run {
    absl::Status status;
    std::map<int64_t, double> losses;       // By step.
    std::map<int64_t, double> evaluations;  // By the step before the evaluation.
    int64_t tokens = 0;                     // After the last step.
    Resumed resumed;
  };
  // Trains a job to its end or to `last_step`, on data_ unless it is null. Its checkpoints go to `folder`.
  Run Train(const Job& job, const std::string& folder, const ResumeOptions& resume = {}, int64_t last_step = -1) {
    Run run;
    auto trainer = Trainer::Create(job, {.backend = CreateBackend(job)->get(),
                                         .data = data_,
                                         .evaluation_data = evaluation_data_,
                                         .checkpoint_folder = Path(folder),
                                         .resume = resume});
    if (!trainer.ok()) {
      run.status = trainer.status();
      return run;
    }
    run.resumed = (*trainer)->resumed();
    run.status = (*trainer)->Run({.on_step =
                                      [&](const StepReport& report) {
                                        EXPECT_EQ(report.peak_bytes_measured, report.peak_bytes_planned);
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
  DataSource* data_ = nullptr;  // The data of jobs without data.path.
  DataSource* evaluation_data_ = nullptr;
};

}  // namespace shale
