// What tests of a program's own data share: sources of samples, and runs of jobs on them.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/api/backend.h"
#include "engine/api/data_source.h"
#include "engine/api/job.h"
#include "engine/api/trainer.h"
#include "engine/files/checkpoint/store.h"

namespace shale {

inline constexpr int64_t kPositions = 10, kIds = 29;

// Returns the sample with a number: tokens and weights that depend on nothing else.
inline PulledSample MakeSample(int64_t number, bool weighted) {
  PulledSample sample;
  for (int64_t i = 0; i < kPositions; ++i) {
    const int64_t mixed = (number * 7919 + i * i * 31 + 5) % 1009;
    sample.inputs.push_back(static_cast<int32_t>(mixed % kIds));
    sample.targets.push_back(mixed % 6 == 0 ? kMaskedTarget : static_cast<int32_t>(mixed * 3 % kIds));
    if (weighted) sample.weights.push_back(static_cast<float>(mixed % 9) / 4 - 0.75f);
  }
  return sample;
}

inline void Write(const PulledSample& sample, const SampleParts& out) {
  std::copy(sample.inputs.begin(), sample.inputs.end(), out.inputs.begin());
  std::copy(sample.targets.begin(), sample.targets.end(), out.targets.begin());
  std::copy(sample.weights.begin(), sample.weights.end(), out.weights.begin());
}

inline DataDescription Describe(bool weighted) {
  return {.name = "made up", .samples = 31, .sequence_length = kPositions, .vocabulary = kIds, .has_weights = weighted};
}

// A source that is a function of the number. `edit` may change a sample, fail or throw.
class MadeUpData : public DataSource {
 public:
  using Edit = std::function<absl::Status(int64_t number, PulledSample& sample)>;
  explicit MadeUpData(DataDescription description, Edit edit = {})
      : DataSource(std::move(description)), edit_(std::move(edit)) {}
  absl::Status Read(int64_t number, const SampleParts& out) override {
    PulledSample sample = MakeSample(number, description().has_weights);
    if (edit_) {
      if (absl::Status status = edit_(number, sample); !status.ok()) return status;
    }
    Write(sample, out);
    return absl::OkStatus();
  }

 private:
  const Edit edit_;
};

// An iterator over the same samples, whose state is the number of the next one.
struct Iterator {
  bool weighted = false;
  int64_t next = 0;
  int64_t end = kEndlessSamples;  // The number of samples that it has.
  PullCallbacks Callbacks() {
    return {.next = [this](PulledSample& sample) -> absl::StatusOr<bool> {
              if (next == end) return false;
              sample = MakeSample(next++ % 31, weighted);
              return true;
            },
            .save = [this]() -> absl::StatusOr<std::string> { return absl::StrCat("at ", next); },
            .restore = [this](const std::string& state) -> absl::Status {
              if (absl::SimpleAtoi(state.substr(3), &next)) return absl::OkStatus();
              return absl::InvalidArgumentError("no state of this iterator");
            }};
  }
};

class OwnDataTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = absl::StrCat(::testing::TempDir(), "/own_data_XXXXXX");
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }

  // Returns a job without data.path. Its global batch of 7 is K = 7, 4 and 3 micro-batches of one, two and three ranks.
  static Job MakeJob(const std::vector<std::string>& overrides) {
    std::vector<std::string> all = {"runtime.ops=REFERENCE"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    absl::StatusOr<Job> job = ParseJobText(R"(
model { decoder { width: 12 layers: 1 heads: 2 hidden: 20 init_std: 0.2 } }
batch { global_batch: 7 micro_batch: 1 sequence_length: 10 }
optimizer { learning_rate: 1e-2 epsilon: 1e-3 }
lr_schedule { steps: 6 warmup_steps: 1 }
checkpoint { every_steps: 3 keep_last: 9 }
runtime { threads_per_rank: 1 }
)",
                                           "job.textproto", all);
    EXPECT_TRUE(job.ok()) << job.status();
    return job.ok() ? *job : Job();
  }

  struct Run {
    absl::Status status;
    std::vector<StepReport> steps;
    std::vector<double> losses;
    std::map<int64_t, double> evaluations;  // By the step before the evaluation.
  };
  absl::StatusOr<std::unique_ptr<Trainer>> Create(const Job& job, DataSource* data, const std::string& folder = "",
                                                  const ResumeOptions& resume = {},
                                                  DataSource* evaluation = nullptr) const {
    const auto backend = CreateBackend(job);
    if (!backend.ok()) return backend.status();
    return Trainer::Create(job, {.backend = backend->get(),
                                 .data = data,
                                 .evaluation_data = evaluation,
                                 .peak_flops = job.telemetry.peak_flops,
                                 .checkpoint_folder = folder.empty() ? "" : Path(folder),
                                 .resume = resume});
  }
  // Trains a job to its end, with checkpoints in `folder` unless it is empty.
  Run Train(const Job& job, DataSource* data, const std::string& folder = "", const ResumeOptions& resume = {},
            DataSource* evaluation = nullptr) {
    Run run;
    auto trainer = Create(job, data, folder, resume, evaluation);
    run.status = trainer.status();
    if (!trainer.ok()) return run;
    run.status = (*trainer)->Run({.on_step =
                                      [&](const StepReport& report) {
                                        run.steps.push_back(report);
                                        run.losses.push_back(report.loss);
                                        EXPECT_EQ(report.peak_bytes_measured, report.peak_bytes_planned);
                                        return absl::OkStatus();
                                      },
                                  .on_evaluation =
                                      [&](const EvaluationReport& report) {
                                        run.evaluations[report.step] = report.loss;
                                        return absl::OkStatus();
                                      }});
    return run;
  }
  std::string Path(absl::string_view name) const { return absl::StrCat(root_, "/", name); }
  ResumeOptions From(absl::string_view folder, int64_t step) const {
    return {.from = ResumeFrom::kPath, .path = absl::StrCat(Path(folder), "/", CheckpointFolderName(step))};
  }

  std::string root_;
};

}  // namespace shale
