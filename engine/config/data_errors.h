// Errors of a job's data, which name the field.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/config/job.h"

namespace shale {

// Begins the message of an error with the field of the job that names what it is about, unless it begins with a field
// of `data` already. Returns OK as it is.
absl::Status InField(absl::string_view field, const absl::Status& status);

// Returns NotFound, with the field, if the job names a tokenizer that does not exist.
absl::Status CheckTokenizerExists(const DataConfig& data);

}  // namespace shale
