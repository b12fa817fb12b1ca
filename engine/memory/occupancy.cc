#include "engine/memory/occupancy.h"

namespace shale {

Occupancy::Occupancy(int32_t moments) {
  while (leaves_ * kLeafMoments < moments) leaves_ *= 2;
  nodes_.resize(2 * leaves_);
  in_leaf_.resize(leaves_);
}

void Occupancy::Take(int32_t first, int32_t last, ByteRange bytes) {
  Take(1, 0, leaves_ * kLeafMoments, {first, last, bytes});
}

void Occupancy::Take(int node, int32_t begin, int32_t end, const Entry& entry) {
  nodes_[node].any.Add(entry.bytes);
  if (entry.first <= begin && entry.last >= end - 1) {
    nodes_[node].whole.Add(entry.bytes);
    return;
  }
  if (IsLeaf(node)) {
    in_leaf_[node - leaves_].push_back(entry);
    return;
  }
  const int32_t middle = begin + (end - begin) / 2;
  if (entry.first < middle) Take(2 * node, begin, middle, entry);
  if (entry.last >= middle) Take(2 * node + 1, middle, end, entry);
}

void Occupancy::TakenDuring(int32_t first, int32_t last, std::vector<ByteRange>& taken) const {
  Collect(1, 0, leaves_ * kLeafMoments, first, last, taken);
}

void Occupancy::Collect(int node, int32_t begin, int32_t end, int32_t first, int32_t last,
                        std::vector<ByteRange>& taken) const {
  const bool covered = first <= begin && last >= end - 1;
  const std::vector<ByteRange>& ranges = (covered ? nodes_[node].any : nodes_[node].whole).ranges();
  taken.insert(taken.end(), ranges.begin(), ranges.end());
  if (covered) return;
  if (IsLeaf(node)) {
    for (const Entry& entry : in_leaf_[node - leaves_]) {
      if (entry.first <= last && entry.last >= first) taken.push_back(entry.bytes);
    }
    return;
  }
  const int32_t middle = begin + (end - begin) / 2;
  if (first < middle) Collect(2 * node, begin, middle, first, last, taken);
  if (last >= middle) Collect(2 * node + 1, middle, end, first, last, taken);
}

}  // namespace shale
