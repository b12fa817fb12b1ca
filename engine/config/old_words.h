// Words that job specs used before, or that other trainers use, and what they are called here.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace shale {

// Returns advice on a field that the spec does not have, by its name: for "retention"
// "activation_checkpointing.preset", for "fsdp" "sharding.strategy=FULL_SHARD". Empty if the name is not known.
std::string TodaysField(absl::string_view name);

// Returns the enum value that is called `name` elsewhere: for "KEEP_ALL" "NONE", for "FULL" and "zero-3" "FULL_SHARD".
// Advice may follow the value: for "HYBRID_SHARD" "FULL_SHARD with sharding.shard_ranks". Ignores case, "_" and "-".
// Empty if the name is not known. Does not know the enum, which may lack the value.
std::string TodaysValue(absl::string_view name);

// Returns the value of an enum field that an earlier version recorded as this one names it: for "strategy" and "FULL"
// "FULL_SHARD". Returns any other value of any field unchanged.
std::string RecordedValueInTodaysWords(absl::string_view field, absl::string_view value);

// Translates a job that a checkpoint recorded (ResolvedJobText of an earlier version: one field or brace per line).
// Moves former fields to the messages that have them now, and renames fields, messages and values. Other lines stay as
// they are, but text that no version printed may turn into nonsense: parse the result. Takes many times the memory of
// the text: limit its size. The job file of a run folder is not translated, because a person who starts a run from it
// should learn today's words.
std::string InTodaysWords(absl::string_view resolved_job);

}  // namespace shale
