// What must hold of a run's checkpoints whatever happened to it, and a job small enough to have it happen often.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/config/job.h"

namespace shale {

// Sanitizers make a run some ten times slower: what is tried often is tried at every kSanitizerStride-th place.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr int kSanitizerStride = 7;
#else
inline constexpr int kSanitizerStride = 1;
#endif

// A job of a few thousand parameters on two ranks that trains on `data_path`, as text.
std::string TinyJobText(absl::string_view data_path);
// Text to train on.
std::string TinyText();

using Losses = std::map<int64_t, double>;  // By step.

// The steps of the checkpoints in a folder, newest first. DataLoss if not every one is whole to the last byte: also one
// that is not the newest must never be half there.
absl::StatusOr<std::vector<int64_t>> WholeCheckpoints(const std::string& folder);

// What is hidden in the folder: traces of saves that never came to their end. None if there is no folder.
std::vector<std::string> Leftovers(const std::string& folder);

// OK if both folders hold the same files.
absl::Status SameFiles(const std::string& a, const std::string& b);

// The newest checkpoint that a run must have once step `step` is known to be done: one that is saved every `interval`
// steps, but for the save that is under way when `asynchronous`. At most 0: none.
int64_t MustBeSaved(int64_t step, int64_t interval, bool asynchronous);

}  // namespace shale
