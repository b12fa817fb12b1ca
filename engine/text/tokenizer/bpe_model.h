// BpeModel: a BPE vocabulary with its merges, which turns a piece of text into tokens. PairTable finds merges fast.
// WordCache remembers the tokens of short pieces, because most pieces of a text have occurred before.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/text/tokenizer/part.h"

namespace shale {

// What a pair of neighboring tokens becomes.
struct Merge {
  static constexpr uint32_t kNone = ~uint32_t{0};
  uint32_t rank = kNone;  // Merges of lower rank are applied first. kNone: the pair has no merge.
  int32_t token = -1;
};

// Open addressing with linear probing, at most half full. Immutable after Build: safe for concurrent use.
class PairTable {
 public:
  struct Entry {
    int32_t left = -1, right = -1;
    Merge merge;
  };

  PairTable() : entries_(2), mask_(1) {}
  // Of entries with the same pair the last counts.
  explicit PairTable(const std::vector<Entry>& entries) {
    size_t size = 2;
    while (size < 2 * entries.size() + 1) size *= 2;
    entries_.resize(size);
    mask_ = size - 1;
    for (const Entry& entry : entries) entries_[Slot(entry.left, entry.right)] = entry;
  }

  Merge Find(int32_t left, int32_t right) const { return entries_[Slot(left, right)].merge; }

 private:
  // Returns where the pair is, or the empty entry where it would be.
  size_t Slot(int32_t left, int32_t right) const {
    const uint64_t key = static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
    size_t slot = (key * 0x9E3779B97F4A7C15u) >> 20 & mask_;
    while (entries_[slot].left >= 0 && (entries_[slot].left != left || entries_[slot].right != right)) {
      slot = (slot + 1) & mask_;
    }
    return slot;
  }

  std::vector<Entry> entries_;
  size_t mask_ = 0;
};

// A hash table with one cache line for each piece. A piece replaces the one that has the same hash. The table has 16
// KiB at first, enough for a short text, and 2 MiB after 256 pieces. Used by one thread.
class WordCache {
 public:
  static constexpr size_t kMaxBytes = 31;
  static constexpr size_t kMaxTokens = 7;

  WordCache() { Clear(kFirstBits); }

  // The place of a piece. Valid until the next Find or Insert.
  struct Lookup {
    uint64_t key[4];
    size_t slot;
  };

  // Appends the tokens of `piece` and returns true if they are known; else sets `*place` for Insert.
  // REQUIRES: 0 < piece.size() <= kMaxBytes.
  bool Find(absl::string_view piece, Lookup* place, std::vector<int32_t>* tokens) const {
    std::memset(place->key, 0, sizeof(place->key));
    std::memcpy(place->key, piece.data(), piece.size());
    // The last byte holds the size, so that a piece and the same piece with zeros at its end differ.
    reinterpret_cast<uint8_t*>(place->key)[kMaxBytes] = static_cast<uint8_t>(piece.size());
    uint64_t hash = place->key[0] * 0x9E3779B97F4A7C15u + place->key[1] * 0xC2B2AE3D27D4EB4Fu +
                    place->key[2] * 0x165667B19E3779F9u + place->key[3] * 0xD6E8FEB86659FD93u;
    hash ^= hash >> 32;
    place->slot = hash * 0x9E3779B97F4A7C15u >> shift_;
    const Slot& slot = slots_[place->slot];
    if (std::memcmp(slot.key, place->key, sizeof(slot.key)) != 0) return false;
    tokens->insert(tokens->end(), slot.tokens, slot.tokens + slot.count);
    return true;
  }

  // Remembers the tokens of the piece that was not found. There may be none: a vocabulary may lack bytes.
  void Insert(const Lookup& place, const int32_t* tokens, size_t count) {
    if (count > kMaxTokens) return;
    if (++inserted_ == size_t{1} << kFirstBits) return Clear(kBits);
    Slot& slot = slots_[place.slot];
    std::memcpy(slot.key, place.key, sizeof(slot.key));
    std::copy_n(tokens, count, slot.tokens);
    slot.count = static_cast<int32_t>(count);
  }

 private:
  static constexpr int kFirstBits = 8, kBits = 15;
  struct alignas(64) Slot {
    uint64_t key[4] = {};
    int32_t tokens[kMaxTokens] = {};
    int32_t count = 0;
  };
  static_assert(sizeof(Slot) == 64);

  // Makes an empty table of 2^bits slots.
  void Clear(int bits) {
    slots_.assign(size_t{1} << bits, Slot());
    shift_ = 64 - bits;
  }

  std::vector<Slot> slots_;
  int shift_ = 0;  // Of a hash, to the number of its slot.
  size_t inserted_ = 0;
};

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
