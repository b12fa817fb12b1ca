// BpeModel: a vocabulary and the merges by which a piece of text becomes tokens.
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
      uint32_t rank = 0;  // Of the merge with the next symbol.
    };
    std::vector<Symbol> symbols;
    std::vector<uint64_t> heap;
  };

  // Reads "model", which must be of type BPE. With `byte_level`, pieces are bytes, and the vocabulary must have each of
  // the 256. Refuses dropout, prefixes and suffixes of words.
  static absl::StatusOr<BpeModel> Read(const JsonPart& part, bool byte_level);

  // Appends the tokens of a piece to `*tokens`: for byte_level any bytes, else well-formed UTF-8. The time is that of a
  // sort. A character that the vocabulary lacks becomes byte tokens or the unknown token, or else is left out, as in
  // the tokenizers library.
  void Encode(absl::string_view piece, Scratch& scratch, std::vector<int32_t>* tokens) const;

  // Returns the number of a token as it is written in the vocabulary, or -1.
  int32_t Find(absl::string_view written) const;
  // Returns a token as it is written in the vocabulary, or null if there is none of this number.
  const std::string* Written(int32_t token) const;
  int64_t size() const { return numbers_.size(); }   // Number of tokens.
  int64_t limit() const { return written_.size(); }  // One more than the largest number.

 private:
  void AddSymbols(absl::string_view piece, std::vector<Scratch::Symbol>& symbols) const;
  absl::Status ReadVocabulary(const JsonPart& part);
  absl::Status ReadMerges(const JsonPart& part);

  bool byte_level_ = false;
  bool ignore_merges_ = false;
  bool fuse_unknown_ = false;
  int32_t unknown_ = -1;
  bool byte_fallback_ = false;
  std::array<int32_t, 256> byte_tokens_;  // By byte; -1: none.
  PairTable merges_;
  std::vector<std::string> written_;  // By number.
  std::vector<bool> exists_;          // By number.
  absl::flat_hash_map<std::string, int32_t> numbers_;
  absl::flat_hash_map<std::string, int32_t> whole_;  // With ignore_merges: the vocabulary as pieces.
};

}  // namespace shale
