// The special and added tokens that the files of a Hugging Face folder name, as AutoTokenizer.from_pretrained of
// transformers 5 collects them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/hugging_face/strict_json.h"
#include "engine/tokenize/added_vocabulary.h"
#include "engine/tokenize/tokenizer_class.h"

namespace shale {

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
