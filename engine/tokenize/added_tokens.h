// AddedTokens: the tokens of a tokenizer.json that are found in a text before it is split.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/tokenize/bpe_model.h"
#include "engine/tokenize/normalizer.h"
#include "engine/tokenize/part.h"

namespace shale {

struct AddedToken {
  int32_t number = 0;
  std::string content;
  std::string normal;  // What it is found as, and decoded to: the content, or its normal form.
  bool single_word = false, left_strip = false, right_strip = false, normalized = false, special = false;
};

// A part of a text: an added token, or text between them (token -1).
struct Section {
  size_t begin = 0, end = 0;
  int32_t token = -1;
};

// Immutable. Safe for concurrent use by multiple threads.
class AddedTokens {
 public:
  // Reads "added_tokens", a list. Returns InvalidArgument if a token's number is not the one that the tokenizers
  // library gives it.
  static absl::StatusOr<AddedTokens> Read(const JsonPart& part, const BpeModel& model, const Normalizer& normalizer);

  const std::vector<AddedToken>& tokens() const { return tokens_; }
  // Returns the added token of a number, or null.
  const AddedToken* Find(int32_t number) const;
  // Returns the number of the token with this content, or -1.
  int32_t Number(absl::string_view content) const;
  // Returns whether there is a special token with this content.
  bool IsSpecial(absl::string_view content) const;
  // Returns whether the same tokens are found if a text is cut behind a line end between characters that are not white
  // space.
  bool by_line() const;

  // Appends the sections of `text`, from its first byte to its last. Finds the tokens that are normalized, or the
  // others. If `special` is false, special tokens are not found.
  void Split(absl::string_view text, bool normalized, bool special, std::vector<Section>* sections) const;
  // Returns whether there are tokens that are normalized, or others.
  bool Any(bool normalized) const { return !tries_[normalized].nodes.empty(); }

 private:
  // Tokens by their bytes. Node 0 is the root.
  struct Trie {
    struct Node {
      int32_t token = -1;  // Index in tokens_.
    };
    std::vector<Node> nodes;
    absl::flat_hash_map<uint64_t, int32_t> next;  // By node << 8 | byte.
    std::array<bool, 256> begins = {};            // By first byte.

    void Add(absl::string_view text, int32_t token);
    // Returns the longest token at the beginning of `text`, or -1, and sets `*bytes`.
    int32_t Longest(absl::string_view text, size_t* bytes) const;
  };

  std::vector<AddedToken> tokens_;
  absl::flat_hash_map<int32_t, int32_t> by_number_;
  absl::flat_hash_map<std::string, int32_t> by_content_;
  Trie tries_[2];  // Of tokens that are not normalized, and that are.
};

}  // namespace shale
