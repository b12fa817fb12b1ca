// Opens the files of a job's data as tokens.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/config/job.h"
#include "engine/data/token_source.h"
#include "engine/tokenize/text_progress.h"

namespace shale {

// Returns the tokens of the files at `path`, which the job names in `field`: data.path, data.mix, or a field of
// evaluation data, whose folders are read as such. Text becomes tokens here if the job has a tokenizer (PrepareText).
// Returns the errors of PrepareText and of TokenSource::Open, which begin with the field that they are about.
absl::StatusOr<TokenSource> OpenJobTokens(const Job& job, absl::string_view field, const std::string& path,
                                          const TextProgress& progress);

}  // namespace shale
