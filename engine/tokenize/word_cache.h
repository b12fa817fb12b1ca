// WordCache: remembers the tokens of short pieces, because most pieces of a text have occurred before.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/strings/string_view.h"

namespace shale {

// A hash table with one cache line for each piece. A piece replaces the one that has the same hash. The table has 16
// KiB at first, enough for a short text, and 2 MiB after 256 pieces. Used by one thread.
class WordCache {
 public:
  static constexpr size_t kMaxBytes = 31;
  static constexpr size_t kMaxTokens = 7;

  WordCache() { Clear(kFirstBits); }

  // The place of a piece. Valid until the next Find or Insert.
  struct Place {
    uint64_t key[4];
    size_t slot;
  };

  // Appends the tokens of `piece` and returns true if they are known; else sets `*place` for Insert.
  // REQUIRES: 0 < piece.size() <= kMaxBytes.
  bool Find(absl::string_view piece, Place* place, std::vector<int32_t>* tokens) const {
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
  void Insert(const Place& place, const int32_t* tokens, size_t count) {
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

}  // namespace shale
