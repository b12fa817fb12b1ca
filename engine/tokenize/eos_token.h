// Finds the tokens that end a document or a generated text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tokenize/tokenizer.h"

namespace shale {

// Returns the `eos_token` of tokenizer_config.json in the tokenizer's folder, or -1 if it names none. Returns
// InvalidArgument if the tokenizer does not have it.
absl::StatusOr<int32_t> EosToken(const Tokenizer& tokenizer, const std::string& folder);

// Returns the tokens at which generation ends: `eos_token_id` of generation_config.json in a Hugging Face folder, or
// else of its config.json, and `eos_token` of its tokenizer_config.json. A missing file or field adds no token. Returns
// InvalidArgument for a file that cannot be understood.
absl::StatusOr<std::vector<int32_t>> EndTokens(const std::string& folder, const Tokenizer& tokenizer);

}  // namespace shale
