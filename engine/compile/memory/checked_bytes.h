// What the check after planning knows of each byte of the arena and of host memory: the latest accesses, and the owner.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <vector>

#include "engine/compile/program/program.h"

namespace shale {

// An issue for each stream; -1 means none.
using IssueByStream = std::array<int32_t, kStreams>;

// Returns no issue for any stream.
constexpr IssueByStream NoIssues() {
  IssueByStream issues{};
  for (int32_t& issue : issues) issue = -1;
  return issues;
}

// The latest issue that read and the latest issue that wrote, by stream.
struct LatestAccesses {
  IssueByStream read = NoIssues(), write = NoIssues();

  void Join(const LatestAccesses& other) {
    for (int s = 0; s < kStreams; ++s) {
      read[s] = std::max(read[s], other.read[s]);
      write[s] = std::max(write[s], other.write[s]);
    }
  }
};

// A binary tree over cells of the arena and of host memory, numbered in order of address. No operand begins or ends
// inside a cell. A node stores the latest accesses to any of its cells, and separately the latest accesses that covered
// all of them. Record and Latest take logarithmic time.
class AccessTree {
 public:
  explicit AccessTree(int32_t cells) {
    while (leaves_ < cells) leaves_ *= 2;
    nodes_.resize(2 * leaves_);
  }

  // Records an access to cells [begin, end) by `issue`, which must be later than all issues recorded before.
  void Record(int32_t begin, int32_t end, int stream, bool write, int32_t issue) {
    const auto set = [&](LatestAccesses& latest) { (write ? latest.write : latest.read)[stream] = issue; };
    for (int32_t l = begin + leaves_, r = end + leaves_; l < r; l /= 2, r /= 2) {
      if (l % 2 == 1) {
        set(nodes_[l].any);
        set(nodes_[l++].all);
      }
      if (r % 2 == 1) {
        set(nodes_[--r].any);
        set(nodes_[r].all);
      }
    }
    for (int32_t n = (begin + leaves_) / 2; n > 0; n /= 2) set(nodes_[n].any);
    for (int32_t n = (end - 1 + leaves_) / 2; n > 0; n /= 2) set(nodes_[n].any);
  }

  // Returns the latest accesses to any of the cells [begin, end).
  LatestAccesses Latest(int32_t begin, int32_t end) const {
    LatestAccesses latest;
    for (int32_t l = begin + leaves_, r = end + leaves_; l < r; l /= 2, r /= 2) {
      if (l % 2 == 1) latest.Join(nodes_[l++].any);
      if (r % 2 == 1) latest.Join(nodes_[--r].any);
    }
    // An access that covered a node above also covered these cells.
    for (int32_t n = begin + leaves_; n > 0; n /= 2) latest.Join(nodes_[n].all);
    for (int32_t n = end - 1 + leaves_; n > 0; n /= 2) latest.Join(nodes_[n].all);
    return latest;
  }

 private:
  struct Node {
    LatestAccesses any;
    LatestAccesses all;
  };
  int32_t leaves_ = 1;       // A power of two.
  std::vector<Node> nodes_;  // The root is 1. The children of n are 2n and 2n + 1. Leaf i is leaves_ + i.
};

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
