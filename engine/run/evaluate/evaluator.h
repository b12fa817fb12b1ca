// Evaluates a model on files: the loss on their tokens, and how many completions the model generates word for word.
//
// EvaluatedJob: the job of an evaluation, made from the job of a run, or for a Hugging Face folder.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/api/backend.h"
#include "engine/api/checkpoint.h"
#include "engine/plan/config/job.h"
#include "engine/run/evaluate/answers.h"
#include "engine/text/documents/prepared_text.h"

namespace shale {

struct EvaluatorOptions {
  // Sequences whose loss is computed at once, and tokens in a sequence. 0: as the run trained; for a folder 1, and as
  // many as the model has positions, but at most 1,024.
  int64_t sequences = 0;
  int64_t sequence_length = 0;
  // What becomes of documents, and which tokens count. Empty: as the run trained; for a folder PACK and COMPLETIONS.
  std::optional<Packing> packing;
  std::optional<LossOn> loss_on;
  // How many completions are generated at once. 0: none, and Match is refused.
  int64_t answers = 0;
  // Tokens that a prompt may have with its answer. 0: as sequence_length.
  int64_t context = 0;
  // Bytes that the plan may have. 0: the default of the machine.
  int64_t budget_bytes = 0;
  std::string base_folder;  // The base of a run whose checkpoints hold adapters alone. Empty: where the run had it.
  std::string cache;        // Keeps the tokens of text. Empty: as the run does.
  TextProgress progress;
};

// Both functions return a job for WeightsOnly, whose data are read once and in order. The caller sets data.path. They
// return InvalidArgument for options that the model cannot have.
//
// Returns the job of a run. `job` is the one that the checkpoint records. The tokenizer is the copy in the run folder,
// if there is one.
absl::StatusOr<Job> EvaluatedJob(Job job, const std::string& run_folder, const EvaluatorOptions& options);
// Returns the job of a Hugging Face folder.
absl::StatusOr<Job> EvaluatedJobOfFolder(const std::string& hf_folder, const EvaluatorOptions& options);

// The loss on a file.
struct DataEvaluation {
  double loss_sum = 0;  // The sum over the tokens that count, in nats.
  int64_t tokens = 0;   // The number of tokens that count.
  int64_t bytes = 0;    // The bytes of the text of these tokens; 0 if it is not known.

  double loss() const;           // The mean over the tokens that count; 0 if none does.
  double perplexity() const;     // exp(loss()).
  double bits_per_byte() const;  // 0 if the text is not known.
};

// Owns a model on one rank, with all cores of the machine. Its memory is planned like that of a step. Used by one
// thread at a time.
class Evaluator {
 public:
  // Takes the model, the tokenizer and the chat template of a run. Returns NotFound if there is no such checkpoint,
  // DataLoss if all are damaged, ResourceExhausted if the plan does not fit, and InvalidArgument for options that the
  // model cannot have.
  static absl::StatusOr<std::unique_ptr<Evaluator>> FromRun(const std::string& run_folder, WhichCheckpoint which,
                                                            const BackendFactory& create_backend,
                                                            const EvaluatorOptions& options);
  // Does the same for a Hugging Face folder.
  static absl::StatusOr<std::unique_ptr<Evaluator>> FromFolder(const std::string& hf_folder,
                                                               const BackendFactory& create_backend,
                                                               const EvaluatorOptions& options);
  ~Evaluator();

  // Returns one message for each newer, or better, checkpoint that FromRun found damaged.
  const std::vector<std::string>& passed_over() const { return passed_over_; }
  // Returns the step of the checkpoint; -1 for a folder.
  int64_t step() const { return step_; }
  // Returns the job as it is evaluated.
  const Job& job() const;
  // Returns the bytes of the arena: those that the plan needs, and those that were used so far.
  int64_t planned_peak_bytes() const;
  int64_t measured_peak_bytes() const;

  // Computes the loss on the data at `path`, which is a file or a folder, as for data.path in a job. With packing CUT,
  // the tokens behind the last full sequence do not count. Returns the errors of JobData::Open.
  absl::StatusOr<DataEvaluation> Evaluate(const std::string& path);

  // Continues the prompts of the JSON Lines at `path` with the most likely tokens, up to a token that ends a text, and
  // compares with the completions, without white space at both ends. If the tokenizer knows no such token, an answer
  // ends where it is as long as the completion. In rows of messages, each answer of the assistant is a completion of
  // the messages before it, as they stand in the file; there, what the chat template writes behind an answer ends it
  // too. Rows of other kinds are left out. Calls `take`, if there is one, with each answer, in the order of the rows.
  // Returns InvalidArgument for a bad line, and if the model has no tokenizer, and FailedPrecondition for messages
  // without a chat template.
  absl::StatusOr<MatchReport> Match(const std::string& path, const MatchOptions& options,
                                    const std::function<absl::Status(const Answer&)>& take = nullptr);

 private:
  class Impl;
  Evaluator(std::unique_ptr<Impl> impl, int64_t step);

  std::unique_ptr<Impl> impl_;
  std::vector<std::string> passed_over_;
  int64_t step_ = -1;
};

}  // namespace shale
