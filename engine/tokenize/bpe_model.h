// BpeModel: a BPE vocabulary with its merges, which turns a piece of text into tokens.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/tokenize/pair_table.h"
#include "engine/tokenize/part.h"

namespace shale {

// Immutable. Safe for concurrent use by multiple threads.
class BpeModel {
 public:
  // Memory for Encode that is kept between calls. Used by one thread.
  struct Scratch {
    struct Symbol {
      int32_t token = 0, previous = -1, next = -1;
      uint32_t rank = 0;  // The rank of the merge with the next symbol.
    };
    std::vector<Symbol> symbols;
    std::vector<uint64_t> heap;
  };

  // Reads "model", which must be of type BPE. If `byte_level`, pieces are bytes. Refuses dropout,
  // continuing_subword_prefix and end_of_word_suffix.
  static absl::StatusOr<BpeModel> Read(const JsonPart& part, bool byte_level);

  // Appends the tokens of a piece to `*tokens`. A character that the vocabulary lacks, or a byte if byte_level, becomes
  // byte tokens or the unknown token, or is left out if the model has neither, as in the tokenizers library. Takes
  // O(n log n) time for n bytes. REQUIRES: the piece is well-formed UTF-8, unless byte_level.
  void Encode(absl::string_view piece, Scratch& scratch, std::vector<int32_t>* tokens) const;

  // Returns the id of a token by its text in the vocabulary, or -1.
  int32_t Find(absl::string_view written) const;
  // Returns the text of a token in the vocabulary, or null if no token has this id.
  const std::string* Written(int32_t token) const;
  // Returns the number of tokens.
  int64_t size() const { return ids_.size(); }
  // Returns one more than the largest id. More than size() if ids have gaps.
  int64_t limit() const { return written_.size(); }

 private:
  void AddSymbols(absl::string_view piece, std::vector<Scratch::Symbol>& symbols) const;
  absl::Status ReadVocabulary(const JsonPart& part);
  absl::Status ReadMerges(const JsonPart& part);

  bool byte_level_ = false;
  bool ignore_merges_ = false;
  bool fuse_unknown_ = false;
  int32_t unknown_ = -1;  // The unknown token; -1: none.
  bool byte_fallback_ = false;
  std::array<int32_t, 256> byte_tokens_;  // The token of each byte; -1: none.
  PairTable merges_;
  std::vector<std::string> written_;                 // Text by id.
  std::vector<bool> exists_;                         // Whether a token has this id.
  absl::flat_hash_map<std::string, int32_t> ids_;    // By text.
  absl::flat_hash_map<std::string, int32_t> whole_;  // With ignore_merges: ids by piece.
};

}  // namespace shale
