// JobData is the data of a job: the samples of each step, and the evaluation data.
//
// OpenJobTokens opens the files of a job's data as tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/api/data_source.h"
#include "engine/api/job.h"
#include "engine/compile/graph/graph.h"
#include "engine/files/checkpoint/manifest.h"
#include "engine/files/data/batch_loader.h"
#include "engine/files/data/token_source.h"
#include "engine/plan/config/job.h"
#include "engine/text/documents/prepared_text.h"

namespace shale {

// The data of a run is its first data, until the program sets other data (Trainer::SetData). `position` counts samples
// of the entire run; the data itself is asked for its place, which counts from where the data began.
//
// Any thread may call the const functions. The others must not run concurrently with them.
class JobData {
 public:
  // The data that the program gives, as in TrainerOptions.
  struct Own {
    DataSource* training = nullptr;
    DataSource* evaluation = nullptr;
  };
  // Opens and checks the data: the files of a job with data.path, else the program's own. The files in
  // `tokenizer_folder`, unless it is empty, identify the tokenizer (TokenizerDigest). Text becomes tokens here
  // (OpenJobTokens). Returns the errors of ValidateJob before it reads anything, and InvalidArgument if a job has both
  // kinds of data or neither.
  static absl::StatusOr<std::unique_ptr<JobData>> Open(const Job& job, const std::string& tokenizer_folder,
                                                       const Own& own, const TextProgress& progress = {});

  // Returns the settings that the job leaves to its data: format and vocabulary.
  const DataFacts& facts() const { return facts_; }
  const BatchLoader& training() const { return *training_; }
  // Evaluation data, with its name among several (data.evaluation_sources).
  struct Evaluation {
    std::string name;  // Empty if the job has no evaluation_sources.
    std::unique_ptr<BatchLoader> loader;
  };
  const std::vector<Evaluation>& evaluations() const { return evaluations_; }
  // Returns a text that tells apart evaluations of `sequences` sequences whose losses cannot be compared.
  std::string DescribeEvaluations(int64_t sequences) const;
  // Prepares the data for a model and for micro-batches of this size, which need not be that of the job it was opened
  // for. Call it before anything is read. Returns InvalidArgument if the data does not have what the model reads.
  absl::Status FitTo(const DataNeeds& needs, int64_t micro_batch);
  // Starts the source at a place (DataSource::Start), and the evaluation data at 0.
  absl::Status Start(int64_t place, const std::string* state) const;
  // Call if the run resumes after `step` steps that took `samples` samples, of which the first `begin` were of other
  // data. If the length of the run is in epochs, recomputes total_steps(), because the steps done may have had another
  // batch size.
  void GoOnAfter(int64_t step, int64_t samples, int64_t begin);
  // OpenOther makes a loader of other data, if that fits the job and what its model reads. Returns FailedPrecondition
  // if the run cannot change its data. GoOnWith makes that loader, which the caller has started at place 0, the
  // training data from `position` on, and destroys the former one.
  absl::StatusOr<std::unique_ptr<BatchLoader>> OpenOther(const Job& job, const DataNeeds& needs,
                                                         DataSource& source) const;
  void GoOnWith(std::unique_ptr<BatchLoader> loader, int64_t position);
  // Returns the number of optimizer steps of the run from its start. The last step of a run in epochs may be short.
  int64_t total_steps() const { return total_steps_; }
  // Returns the samples of the step that begins at `position`, by their places in the data. The last step of a run in
  // epochs takes the samples that are left; beyond the end there are none. A run in steps always takes full batches,
  // across epochs.
  StepSamples SamplesAt(int64_t position) const;
  // Returns what a checkpoint records about the data, but for the state of the source.
  const SavedData& saved() const { return saved_; }
  // Returns the same with the state of the source at `position`, that of the last step that ran.
  SavedData SavedAt(int64_t position) const;

 private:
  JobData() = default;
  absl::Status OpenFiles(Job job, const TextProgress& progress);
  absl::Status OpenOwn(const Job& job, const Own& own);
  // Returns what checkpoints record as the tokenizer of data that is called `name`.
  std::string Recorded(const std::string& name) const;
  int64_t StepsFor(int64_t samples) const;

  // Makes a loader of evaluation data.
  absl::Status AddEvaluation(const Job& job, const std::string& name, std::shared_ptr<DataSource> source);

  std::unique_ptr<BatchLoader> training_;
  std::vector<Evaluation> evaluations_;
  int64_t global_batch_ = 0;
  int64_t total_steps_ = 0;
  int64_t total_samples_ = -1;  // -1 if the length of the run is in steps.
  int64_t begin_ = 0;           // The position at which the data began.
  std::string digest_;          // TokenizerDigest; may be empty.
  DataFacts facts_;
  SavedData saved_;
};

// Returns InvalidArgument if a run of `processes` processes, which saves or does not, cannot have data of this source.
absl::Status CheckSource(const DataSource& source, int processes, bool saves);

// Returns the tokens of the files at `path`, which the job names in `field`: data.path, data.mix, or a field of
// evaluation data, whose folders are read as such. Text becomes tokens here if the job has a tokenizer (PrepareText).
// Returns the errors of PrepareText and of TokenSource::Open, which begin with the field that they are about.
absl::StatusOr<TokenSource> OpenJobTokens(const Job& job, absl::string_view field, const std::string& path,
                                          const TextProgress& progress);

}  // namespace shale
