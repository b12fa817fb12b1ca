// Reads the tokenizer of a Hugging Face folder as AutoTokenizer.from_pretrained of transformers 5 does: tokenizer.json,
// what other files say about special and added tokens, and what the class of the tokenizer adds by itself.
//
// FolderTokens: the special and added tokens that the files of such a folder name.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/files/hugging_face/strict_json.h"
#include "engine/text/tokenizer/added_tokens.h"
#include "engine/text/tokenizer/tokenizer_class.h"

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

// An object in a file, with the names of its members in the order of the file. Empty if there is no such file.
struct OrderedObject {
  Json json = Json::object();
  std::vector<std::string> names;
};

// Parses the text of a file. The order of a "extra_special_tokens" in it is that of `extra_names`.
absl::StatusOr<OrderedObject> ParseOrdered(absl::string_view text, std::vector<std::string>* extra_names = nullptr);

// The files that name tokens.
struct TokenFilesOfFolder {
  OrderedObject tokenizer_config;
  std::vector<std::string> extra_names;  // Of "extra_special_tokens" in tokenizer_config.json, if that is an object.
  OrderedObject special_tokens_map;
  OrderedObject added_tokens;
  // "added_tokens" and "padding" of tokenizer.json.
  Json own_added_tokens, padding;
};

struct FolderTokens {
  // Tokens with a name, such as "eos_token", in the order in which transformers adds them.
  std::vector<std::pair<std::string, GivenToken>> named;
  std::vector<GivenToken> others;         // Special tokens without a name.
  std::map<int64_t, GivenToken> decoder;  // added_tokens_decoder, by the id that the file gives.
};

// Collects the tokens. Returns InvalidArgument, with file and member, for what transformers refuses, and for members by
// which transformers would make another tokenizer than Shale does.
absl::StatusOr<FolderTokens> ReadFolderTokens(const TokenFilesOfFolder& files, TokenizerClass tokenizer_class);

}  // namespace shale
