// The data of a job: what each step trains on, and what is held out.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/manifest.h"
#include "engine/config/job.h"
#include "engine/data/batch_loader.h"
#include "engine/runtime/executor.h"

namespace shale {

// Immutable once open; any thread may read.
class JobData {
 public:
  // Opens and checks the files of the job, and decides what it left to them: the format and the vocabulary.
  // `tokenizer_folder`, which may be empty, tells of the tokenizer (TokenizerDigest).
  static absl::StatusOr<std::unique_ptr<JobData>> Open(Job& job, const std::string& tokenizer_folder);

  const BatchLoader& training() const { return *training_; }
  const BatchLoader* evaluation() const { return evaluation_.get(); }  // Null: none.
  // A run goes on after `step` steps that took `samples`. If it is in epochs, and its steps were larger or smaller
  // then, what is left makes another number of steps.
  void GoOnAfter(int64_t step, int64_t samples);
  // Optimizer steps of the run from its start; the last one of a run in epochs may be short.
  int64_t total_steps() const { return total_steps_; }
  // The samples of the step that begins at a position. A run in epochs ends with what is left, then with none; a run in
  // steps always takes whole batches, across epochs.
  StepSamples SamplesAt(int64_t position) const;
  // What a checkpoint says of the data.
  const SavedData& saved() const { return saved_; }

 private:
  JobData() = default;
  absl::Status OpenFiles(Job& job);
  int64_t StepsFor(int64_t samples) const;

  std::unique_ptr<BatchLoader> training_, evaluation_;
  int64_t global_batch_ = 0;
  int64_t total_steps_ = 0;
  int64_t total_samples_ = -1;  // -1: no end but that of the steps.
  SavedData saved_;
};

// The host's tokens of one program run, for every rank. Borrows the loader.
class HostBatch {
 public:
  HostBatch(const BatchLoader& loader, int64_t micro_batches);

  // Fills in the tokens of `step` and returns what each rank's executor wants; valid until the next call.
  absl::StatusOr<std::vector<StepInputs>> Fill(const StepSamples& step);

 private:
  const BatchLoader& loader_;
  int64_t micro_batches_;
  int64_t tokens_;
  std::vector<std::vector<int32_t>> inputs_, targets_;  // By rank.
};

}  // namespace shale
