// Identifies the tokenizer of a Hugging Face folder.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace shale {

// Returns a text that distinguishes tokenizers by the files that map text to tokens. For each of tokenizer.json,
// tokenizer.model, vocab.json and merges.txt that exists, it has the name and the CRC-32C, "tokenizer.json 1a2b3c4d",
// joined by ", ". Returns "" if none exists. Returns the errors of ListCopiedHfFiles and of ReadFile.
absl::StatusOr<std::string> TokenizerDigest(const std::string& folder);

}  // namespace shale
