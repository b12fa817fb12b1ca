// Translates words that job specs used formerly, or that other trainers use, into the words of this version.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace shale {

// Returns the field or the advice to show for a field `name` that the spec does not have:
// "activation_checkpointing.preset" for "retention", "sharding.strategy=FULL_SHARD" for "fsdp". Returns "" if the name
// is not known.
std::string TodaysField(absl::string_view name);

// Returns the enum value that is called `name` elsewhere: "NONE" for "KEEP_ALL", "FULL_SHARD" for "FULL" and for
// "zero-3". The value may be followed by advice: "FULL_SHARD with sharding.shard_ranks" for "HYBRID_SHARD". Ignores
// case, "_" and "-". Returns "" if the name is not known. Does not look at any enum, so the caller must check that its
// enum has the value.
std::string TodaysValue(absl::string_view name);

// Returns today's name of an enum value that an earlier version recorded for `field`: "FULL_SHARD" for "strategy" and
// "FULL". Returns every other value unchanged.
std::string RecordedValueInTodaysWords(absl::string_view field, absl::string_view value);

// Translates a job that a checkpoint recorded (ResolvedJobText of an earlier version, which has one field or brace per
// line). Moves former fields to the messages that have them now, and renames fields, messages and values. Leaves other
// lines as they are. Text that no version printed may turn into nonsense, so the caller must parse the result. Uses
// many times the memory of the text, so the caller must limit its size. Do not call it for the job file of a run
// folder: a person who starts a run from that file should learn today's words.
std::string InTodaysWords(absl::string_view resolved_job);

}  // namespace shale
