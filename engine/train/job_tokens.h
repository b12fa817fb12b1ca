// Opens the files of a job's data as tokens.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/config/job.h"
#include "engine/data/token_source.h"
#include "engine/tokenize/text_progress.h"

namespace shale {

// Returns the tokens of the files at `path`, which is data.path or data.evaluation_path. Text becomes tokens here if
// the job has a tokenizer (PrepareText). Returns the errors of PrepareText and of TokenSource::Open.
absl::StatusOr<TokenSource> OpenJobTokens(const Job& job, const std::string& path, const TextProgress& progress);

}  // namespace shale
