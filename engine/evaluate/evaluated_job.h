// Makes the job of an evaluation from the job of a run, or for a Hugging Face folder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/config/job.h"
#include "engine/tokenize/text_progress.h"

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

}  // namespace shale
