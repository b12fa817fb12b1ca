// Words that job specs used before, or that other trainers use, and what they are called here.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace shale {

// Returns what a field or a value that this spec does not have is called here, as advice: "activation_checkpointing.
// preset", "accumulation: NO_SYNC". Empty if nothing is known of it. `name` is one field name ("zero_stage") or one
// name of an enum value ("KEEP_ALL").
std::string TodaysWordFor(absl::string_view name);

// Rewrites a resolved job that an earlier version printed (ResolvedJobText: a field a line, nothing else) in the words
// of this one. Returns any other text unchanged. Serves jobs that are recorded in checkpoints and run folders.
std::string InTodaysWords(absl::string_view resolved_job);

}  // namespace shale
