// Translates words that other trainers use into those of job specs, for messages about words that a spec does not have.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace shale {

// Returns the field or the advice to show for a field `name` that the spec does not have:
// "activation_checkpointing.preset=BLOCK" for "gradient_checkpointing", "sharding.strategy=FULL_SHARD" for "fsdp".
// Returns "" if the name is not known.
std::string OurField(absl::string_view name);

// Returns the enum value that is called `name` elsewhere: "FULL_SHARD" for "zero-3". The value may be followed by
// advice: "FULL_SHARD with sharding.shard_ranks" for "HYBRID_SHARD". Ignores case, "_" and "-". Returns "" if the name
// is not known. Does not look at any enum, so the caller must check that its enum has the value.
std::string OurValue(absl::string_view name);

}  // namespace shale
