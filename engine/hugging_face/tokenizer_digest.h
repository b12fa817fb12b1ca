// Identifies the tokenizer of a Hugging Face folder.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace shale {

// Returns a text that distinguishes tokenizers by the files that map text to tokens: "tokenizer.json 1a2b3c4d", the
// name and CRC-32C, for each of tokenizer.json, tokenizer.model, vocab.json and merges.txt that exists, joined by ", ".
// Empty if none exists. Returns the errors of ListCopiedHfFiles and of reading.
absl::StatusOr<std::string> TokenizerDigest(const std::string& folder);

}  // namespace shale
