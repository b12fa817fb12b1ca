// The owner of each byte of the arena and of host memory, for the check after planning.
#pragma once

#include <cstdint>
#include <iterator>
#include <limits>
#include <map>

#include "engine/program/program.h"

namespace shale {

// Maps each byte to its owner, which is the buffer that wrote it last. Adjacent bytes with the same owner form one
// piece, so there are about as many pieces as live buffers.
class ByteOwners {
 public:
  ByteOwners() { pieces_[std::numeric_limits<int64_t>::min()] = -1; }

  void Set(int64_t begin, int64_t end, BufferId owner) {
    if (begin >= end) return;
    auto it = std::prev(pieces_.upper_bound(begin));
    if (it->second == owner && EndOf(it) >= end) return;
    const BufferId after = std::prev(pieces_.upper_bound(end))->second;
    const BufferId before = it->first < begin ? it->second : (it == pieces_.begin() ? -1 : std::prev(it)->second);
    pieces_.erase(pieces_.lower_bound(begin), pieces_.upper_bound(end));
    if (before != owner) pieces_[begin] = owner;
    if (after != owner) pieces_[end] = after;
  }

  // Returns the first byte of [begin, end) that `owner` does not own, or `end` if it owns all of them.
  int64_t FirstForeign(int64_t begin, int64_t end, BufferId owner) const {
    for (auto it = std::prev(pieces_.upper_bound(begin)); begin < end; ++it) {
      if (it->second != owner) return begin;
      begin = EndOf(it);
    }
    return end;
  }

 private:
  using Pieces = std::map<int64_t, BufferId>;  // By first byte. Each piece extends to the next one. -1 means no owner.
  int64_t EndOf(Pieces::const_iterator it) const {
    const auto next = std::next(it);
    return next == pieces_.end() ? std::numeric_limits<int64_t>::max() : next->first;
  }
  Pieces pieces_;
};

}  // namespace shale
