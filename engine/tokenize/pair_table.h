// PairTable: a hash table from pairs of tokens to merges, made for fast look-up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

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

}  // namespace shale
