// Finds the class of tokenizer that transformers takes for a folder, and what the class makes of a tokenizer.json.
//
// The names of the classes are a table, tokenizer_class_names.cc, which tests/parity/make_tokenizer_classes.py writes.
// Names lack "Fast".
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/files/hugging_face/strict_json.h"

namespace shale {

// kFile reads tokenizer.json as it stands (PreTrainedTokenizerFast). The others take vocabulary, merges and
// post-processor from the file, and have their own rules for how a text is normalized and split.
enum class TokenizerClass { kFile, kGpt2, kGptNeoX, kLlama, kQwen2, kGemma };

absl::string_view NameOf(TokenizerClass tokenizer_class);

// Returns the special tokens that a class has where the files name none: names, such as "eos_token", and contents, or
// null for a token that the class does not have, even if tokenizer.json has padding.
std::vector<std::pair<std::string, Json>> DefaultTokens(TokenizerClass tokenizer_class);

// Returns the class that AutoTokenizer.from_pretrained takes (transformers 5, without mistral-common) for the objects
// in tokenizer_config.json and config.json; empty ones stand for files that do not exist. `byte_level` says whether
// tokenizer.json contains the text "ByteLevel". Returns InvalidArgument for a class that is not supported, and for one
// whose code is in the folder (auto_map).
absl::StatusOr<TokenizerClass> FindTokenizerClass(const Json& tokenizer_config, const Json& config, bool byte_level);

// Changes the parts of a tokenizer.json to those that the class makes of it, but for its added tokens. Returns
// InvalidArgument if the class splits text by other rules than the file does: transformers then ignores the rules that
// the model was trained with, and Shale does not guess.
absl::Status ApplyTokenizerClass(TokenizerClass tokenizer_class, const Json& tokenizer_config, Json* tokenizer);

// The model types for which transformers takes a class, with spaces between. The class is "" if it reads tokenizer.json
// as it stands.
struct TypesOfClass {
  absl::string_view name, types;
};
extern const absl::Span<const TypesOfClass> kTypesOfClasses;

// A name that tokenizer_class may have, and the class that it names. A name that is not among these means a class that
// reads tokenizer.json as it stands.
struct ClassName {
  absl::string_view name, means;
};
extern const absl::Span<const ClassName> kClassNames;

// The model types, with spaces between, whose own class transformers takes whatever tokenizer_class says.
extern const absl::string_view kTypesWithWrongClass;

}  // namespace shale
