// Reads the tokenizer of a Hugging Face folder as AutoTokenizer.from_pretrained of transformers 5 does: tokenizer.json,
// what other files say about special and added tokens, and what the class of the tokenizer adds by itself.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/hugging_face/strict_json.h"

namespace shale {

// The names of special tokens, such as "eos_token", and their contents, as chat templates see them.
using SpecialTokens = std::vector<std::pair<std::string, std::string>>;

struct FolderTokenizer {
  Json tokenizer;  // A tokenizer.json that says everything, with the ids that transformers gives.
  SpecialTokens special_tokens;
};

// Reads tokenizer.json, tokenizer_config.json, special_tokens_map.json, added_tokens.json and config.json in a folder,
// of which only the first must exist. Returns the errors of ReadFile, and InvalidArgument, with file and member, for
// what is not supported: a class of tokenizers, code in the folder, or rules for splitting text that transformers would
// ignore.
absl::StatusOr<FolderTokenizer> ReadFolderTokenizer(const std::string& folder);

// Returns the special tokens alone. The folder may lack tokenizer.json.
absl::StatusOr<SpecialTokens> ReadSpecialTokens(const std::string& folder);

// Returns the text of the folder's tokenizer_config.json with a tokenizer_class, which config.json may have decided
// before, so that the tokenizer means the same beside the config.json of another model. Returns the errors of
// ReadFolderTokenizer.
absl::StatusOr<std::string> TokenizerConfigWithClass(const std::string& folder);

// The names of the files, besides tokenizer.json, that decide the tokens of a text, documents' ends included.
inline constexpr const char* kTokenizerSettingFiles[] = {"tokenizer_config.json", "special_tokens_map.json",
                                                         "added_tokens.json", "config.json", "generation_config.json"};

}  // namespace shale
