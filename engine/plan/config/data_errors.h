// Errors of a job's data, which name the field.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/plan/config/job.h"

namespace shale {

// A path that a job names, and the field that names it.
struct NamedPath {
  absl::string_view field, path;
};

// Begins the message of an error with the field that it is about, unless it begins with a field of `data` already: the
// field whose path the message shows, of several the one with the longest path, or the first field if it shows none.
// Returns OK as it is. REQUIRES: `named` is not empty.
absl::Status InField(const std::vector<NamedPath>& named, const absl::Status& status);

// Returns InvalidArgument, which begins with the field, if the job names a tokenizer that does not exist.
absl::Status CheckTokenizerExists(const DataConfig& data);

}  // namespace shale
