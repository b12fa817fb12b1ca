// AddedVocabulary: gives added tokens their ids, as the tokenizers library does when tokens are added one list after
// another.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/hugging_face/strict_json.h"

namespace shale {

// A token as the files of a folder give it.
struct GivenToken {
  std::string content;
  bool single_word = false, left_strip = false, right_strip = false, special = false;
  std::optional<bool> normalized;  // By default, special tokens are not normalized and others are.
  bool is_text = false;            // Whether the file gives the content alone.

  bool is_normalized() const { return normalized.value_or(!special); }
};

// Reads an AddedToken: an object with "content" and flags. `where` names it in messages.
absl::StatusOr<GivenToken> ReadGivenToken(const Json& json, absl::string_view where);

class AddedVocabulary {
 public:
  // `vocabulary` is "vocab" of the model: an object from tokens to ids. Borrowed.
  explicit AddedVocabulary(const Json& vocabulary) : vocabulary_(vocabulary) {}

  // Adds tokens. A token that exists keeps its id and takes the new properties, and is special if it ever was. Ids of
  // new tokens follow the vocabulary and all tokens of former lists. Does nothing for an empty content.
  void Add(const std::vector<GivenToken>& tokens);

  // Returns whether a token with this content was added.
  bool Has(absl::string_view content) const { return ids_.contains(content); }
  // Returns the id of a token, added or of the model, or -1.
  int64_t Id(const std::string& content) const;
  // Returns "added_tokens" of a tokenizer.json.
  Json ToJson() const;

 private:
  // Returns the id of a token of the model, or -1.
  int64_t InModel(const std::string& content) const;

  const Json& vocabulary_;
  absl::flat_hash_map<std::string, int64_t> ids_;
  absl::flat_hash_set<std::string> special_;
  std::map<int64_t, GivenToken> tokens_;
};

}  // namespace shale
