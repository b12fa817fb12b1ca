// The files of a Hugging Face folder besides its weights and its config.json: which of them are copied along with a
// model, the completed generation_config.json, and the digest of its tokenizer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shale {

struct HfFile {
  std::string name;
  std::string path;  // The real path, with links resolved.
};

// Returns the files of `folder` that make up a tokenizer, and generation_config.json, sorted by name. Omits entries of
// such names that are not regular files (such as a folder of old tokenizers). Returns InvalidArgument for a link to a
// file elsewhere (see ResolveInFolder), and NotFound if a link's target or the folder does not exist.
absl::StatusOr<std::vector<HfFile>> ListCopiedHfFiles(const std::string& folder);

// Returns the text of a generation_config.json whose `eos_token_id` has `end_tokens`, behind those that it had. `text`
// is the file as it is, or null if there is none: transformers then takes the members from config.json, and so does
// this. Returns null if nothing is missing. Returns InvalidArgument for a file that cannot be understood.
absl::StatusOr<std::optional<std::string>> CompletedGenerationConfig(const std::optional<std::string>& text,
                                                                     absl::string_view config,
                                                                     const std::vector<int32_t>& end_tokens);

// Returns a text that distinguishes tokenizers by the files that map text to tokens. For each of tokenizer.json,
// tokenizer.model, vocab.json and merges.txt that exists, it has the name and the CRC-32C, "tokenizer.json 1a2b3c4d",
// joined by ", ". Returns "" if none exists. Returns the errors of ListCopiedHfFiles and of ReadFile.
absl::StatusOr<std::string> TokenizerDigest(const std::string& folder);

}  // namespace shale
