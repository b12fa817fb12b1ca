// Finds the token that ends a document.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "engine/tokenize/tokenizer.h"

namespace shale {

// Returns the `eos_token` of tokenizer_config.json in the tokenizer's folder, or -1 if it names none. Returns
// InvalidArgument if the tokenizer does not have it.
absl::StatusOr<int32_t> EosToken(const Tokenizer& tokenizer, const std::string& folder);

}  // namespace shale
