// Which tokenizer a Hugging Face folder holds.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace shale {

// Tells tokenizers apart by the bytes of the files that decide what text becomes which token: "tokenizer.json 1a2b3c4d"
// for each of tokenizer.json, tokenizer.model, vocab.json and merges.txt that is there, with its CRC-32C; empty if none
// is. The errors of ListCopiedHfFiles and of reading.
absl::StatusOr<std::string> TokenizerDigest(const std::string& folder);

}  // namespace shale
