// Checks that the checkpoints of a run must pass whatever happened to it, and a job small enough to be run often.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/plan/config/job.h"

namespace shale {

// Returns the step of loops over all places at which a run can fail: 1, for every place, if SHALE_TEST_EVERYTHING is
// set in the environment. Sanitizers make a run about ten times slower.
int FaultStride();

// Returns the text of a job that trains a few thousand parameters on two ranks with the data at `data_path`.
std::string TinyJobText(absl::string_view data_path);
// Returns text to train on.
std::string TinyText();

using Losses = std::map<int64_t, double>;  // By step.

// Returns the steps of the checkpoints in a folder, newest first. Returns an error unless every one is whole to the
// last byte. Older checkpoints must be whole too.
absl::StatusOr<std::vector<int64_t>> WholeCheckpoints(const std::string& folder);

// Returns the hidden names in the folder, which are traces of unfinished saves, but not that of a lock. Empty if there
// is no folder.
std::vector<std::string> Leftovers(const std::string& folder);

// Returns OK if both folders hold the same names with the same bytes.
absl::Status SameFiles(const std::string& a, const std::string& b);

// Returns the newest step whose checkpoint must exist once the run has reported `step`, if it saves every `interval`
// steps. An asynchronous save may still be under way and does not count. If the result is 0 or less, none must exist.
int64_t MustBeSaved(int64_t step, int64_t interval, bool asynchronous);

}  // namespace shale
