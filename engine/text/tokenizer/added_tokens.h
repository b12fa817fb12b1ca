// AddedTokens: the tokens of a tokenizer.json that are found in a text before it is split.
//
// AddedVocabulary: gives added tokens their ids, as the tokenizers library does when tokens are added one list after
// another.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/files/hugging_face/strict_json.h"
#include "engine/text/tokenizer/bpe_model.h"
#include "engine/text/tokenizer/normalizer.h"
#include "engine/text/tokenizer/part.h"

namespace shale {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  // The text that Split finds and that decoders write: the content, or its normal form if `normalized`.
  std::string normal;
  bool single_word = false, left_strip = false, right_strip = false, normalized = false, special = false;
};

// Bytes [begin, end) of a text: an added token, or text between added tokens.
struct Section {
  size_t begin = 0, end = 0;
  int32_t token = -1;  // -1: text.
};

// Immutable. Safe for concurrent use by multiple threads.
class AddedTokens {
 public:
  // Reads "added_tokens", a list. Returns InvalidArgument if the id of a token is not the one that the tokenizers
  // library gives it.
  static absl::StatusOr<AddedTokens> Read(const JsonPart& part, const BpeModel& model, const Normalizer& normalizer);

  const std::vector<AddedToken>& tokens() const { return tokens_; }
  // Returns the added token with this id, or null.
  const AddedToken* Find(int32_t id) const;
  // Returns the id of the token with this content, or -1.
  int32_t Id(absl::string_view content) const;
  // Returns whether there is a special token with this content.
  bool IsSpecial(absl::string_view content) const;
  // Returns whether Split finds the same tokens in a text that was cut in two after a line end, if the characters
  // around the line end are not white space.
  bool by_line() const;

  // Appends the sections of `text`, from its first byte to its last. Finds either the tokens that are normalized, in
  // normalized text, or the others. Leaves special tokens as text unless `special`. Returns InvalidArgument, and leaves
  // such tokens out, if a token with left_strip stands in white space that the token before it has taken with
  // right_strip: the library fails at these texts.
  absl::Status Split(absl::string_view text, bool normalized, bool special, std::vector<Section>* sections) const;
  // Returns whether there are tokens for Split to find.
  bool Any(bool normalized) const { return !tries_[normalized].nodes.empty(); }

 private:
  // Finds tokens by their bytes. Node 0 is the root.
  struct Trie {
    struct Node {
      int32_t token = -1;  // The token that ends here, as an index in tokens_.
    };
    std::vector<Node> nodes;
    absl::flat_hash_map<uint64_t, int32_t> next;  // From node << 8 | byte to the next node.
    std::array<bool, 256> begins = {};            // Whether a token begins with this byte.

    // Returns false if another token has the same text.
    bool Add(absl::string_view text, int32_t token);
    // Returns the longest token at the beginning of `text`, or -1, and sets `*bytes`.
    int32_t Longest(absl::string_view text, size_t* bytes) const;
  };

  std::vector<AddedToken> tokens_;
  // Indexes in tokens_.
  absl::flat_hash_map<int32_t, int32_t> by_id_;
  absl::flat_hash_map<std::string, int32_t> by_content_;
  Trie tries_[2];  // [0] finds the tokens that are not normalized, [1] those that are.
};

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
