#include "engine/compile/memory/packing.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <utility>

namespace shale {
namespace {

// PackIntervals tries no further order after it has looked at this many taken ranges, which takes about a twentieth of
// a second. Work is counted, not timed, so that a plan is the same on every machine.
constexpr int64_t kWork = 2'000'000;
constexpr int64_t kWorkOfPlacement = 30;  // Work counted for each placement, besides the ranges that it looks at.
constexpr int kRounds = 16;               // Maximum number of orders derived from each initial order.
// The search stops at a height within 1 / kToleratedFraction of the lower bound.
constexpr int64_t kToleratedFraction = 1000;

// Intervals in moments instead of times. A moment stands for a run of times in which intervals begin but none ends. At
// the last of these times all of the run's intervals are live, so intervals overlap in time exactly if they share a
// moment.
struct Moments {
  std::vector<PackInterval> intervals;
  int32_t count = 0;
};

Moments ToMoments(absl::Span<const PackInterval> intervals) {
  std::vector<int32_t> begins, ends, kept;
  for (const PackInterval& interval : intervals) {
    begins.push_back(interval.first);
    ends.push_back(interval.last);
  }
  std::sort(begins.begin(), begins.end());
  std::sort(ends.begin(), ends.end());
  size_t end = 0;
  for (size_t i = 0; i < begins.size(); ++i) {
    const int32_t next = i + 1 < begins.size() ? begins[i + 1] : std::numeric_limits<int32_t>::max();
    if (next == begins[i]) continue;
    const size_t before = end;
    while (end < ends.size() && ends[end] < next) ++end;
    if (end > before) kept.push_back(begins[i]);
  }
  Moments moments{.count = static_cast<int32_t>(kept.size())};
  for (const PackInterval& interval : intervals) {
    const auto first = std::lower_bound(kept.begin(), kept.end(), interval.first) - kept.begin();
    const auto last = std::upper_bound(kept.begin(), kept.end(), interval.last) - kept.begin() - 1;
    moments.intervals.push_back({interval.bytes, static_cast<int32_t>(first), static_cast<int32_t>(last)});
  }
  return moments;
}

// Returns the lowest offset at which `bytes` bytes are free. Sorts the ranges that are taken.
int64_t LowestOffset(std::vector<ByteRange>& taken, int64_t bytes) {
  std::sort(taken.begin(), taken.end(), [](const ByteRange& a, const ByteRange& b) { return a.begin < b.begin; });
  int64_t top = 0;
  for (const ByteRange& range : taken) {
    if (range.begin - top >= bytes) return top;
    top = std::max(top, range.end);
  }
  return top;
}

// Places the intervals in the given order, each at the lowest offset that is free. Adds to `work`. `occupancy` may be
// that of an earlier packing.
PackedIntervals Place(const Moments& moments, const std::vector<int32_t>& order, Occupancy& occupancy, int64_t& work) {
  PackedIntervals packing{.offsets = std::vector<int64_t>(moments.intervals.size(), 0)};
  occupancy.Clear();
  std::vector<ByteRange> taken;
  for (int32_t i : order) {
    const PackInterval& interval = moments.intervals[i];
    if (interval.bytes == 0) continue;
    taken.clear();
    occupancy.TakenDuring(interval.first, interval.last, taken);
    work += kWorkOfPlacement + std::ssize(taken);
    const int64_t offset = LowestOffset(taken, interval.bytes);
    packing.offsets[i] = offset;
    packing.height = std::max(packing.height, offset + interval.bytes);
    occupancy.Take(interval.first, interval.last, {offset, offset + interval.bytes});
  }
  return packing;
}

// An order of placement, and the packing that it gave.
struct Attempt {
  std::vector<int32_t> order;
  PackedIntervals packing;
  bool stuck = false;  // All intervals that reach the top are at the front already.
};

// Returns an order with the largest key first. Intervals with equal keys keep their order.
std::vector<int32_t> Descending(const Moments& moments, const std::function<double(const PackInterval&)>& key) {
  std::vector<std::pair<double, int32_t>> keyed;
  for (const PackInterval& interval : moments.intervals) {
    keyed.push_back({-key(interval), static_cast<int32_t>(keyed.size())});
  }
  std::sort(keyed.begin(), keyed.end());
  std::vector<int32_t> order;
  for (const auto& [negated_key, i] : keyed) order.push_back(i);
  return order;
}

// Moves the intervals that reach the top to the front of the order.
void RaiseTop(const Moments& moments, Attempt& attempt) {
  std::vector<int32_t> next = attempt.order;
  std::stable_partition(next.begin(), next.end(), [&](int32_t i) {
    return attempt.packing.offsets[i] + moments.intervals[i].bytes == attempt.packing.height;
  });
  attempt.stuck = next == attempt.order;
  attempt.order = std::move(next);
}

}  // namespace

Occupancy::Occupancy(int32_t moments) {
  while (leaves_ * kLeafMoments < moments) leaves_ *= 2;
  nodes_.resize(2 * leaves_);
  in_leaf_.resize(leaves_);
}

void Occupancy::Clear() {
  for (Node& node : nodes_) {
    node.any.clear();
    node.whole.clear();
  }
  for (std::vector<Entry>& entries : in_leaf_) entries.clear();
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
  const absl::Span<const ByteRange> ranges = (covered ? nodes_[node].any : nodes_[node].whole).ranges();
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

int64_t LargestLiveBytes(absl::Span<const PackInterval> intervals) {
  std::vector<std::pair<int32_t, int64_t>> changes;
  for (const PackInterval& interval : intervals) {
    changes.push_back({interval.first, interval.bytes});
    changes.push_back({interval.last + 1, -interval.bytes});
  }
  std::sort(changes.begin(), changes.end());  // At equal times, intervals that end come first.
  int64_t live = 0, largest = 0;
  for (const auto& [time, bytes] : changes) {
    live += bytes;
    largest = std::max(largest, live);
  }
  return largest;
}

PackedIntervals PackIntervals(absl::Span<const PackInterval> intervals) {
  const Moments moments = ToMoments(intervals);
  const int64_t lower_bound = LargestLiveBytes(moments.intervals);
  const int64_t good_enough = lower_bound + lower_bound / kToleratedFraction;
  const auto bytes = [](const PackInterval& i) { return static_cast<double>(i.bytes); };
  const auto duration = [](const PackInterval& i) { return static_cast<double>(i.last - i.first); };
  // Orders by the size's power of two, and among equals by time, because repeated layers then tend to repeat their
  // addresses.
  const auto magnitude = [](const PackInterval& i) {
    return static_cast<double>(std::bit_width(static_cast<uint64_t>(i.bytes))) * 0x1p32 - i.first;
  };

  std::vector<Attempt> attempts;
  attempts.push_back({.order = Descending(moments, bytes)});
  attempts.push_back({.order = Descending(moments, duration)});
  attempts.push_back({.order = Descending(moments, magnitude)});
  PackedIntervals best;
  Occupancy occupancy(moments.count);
  int64_t work = 0;
  for (int round = 0; round <= kRounds; ++round) {
    for (Attempt& attempt : attempts) {
      if (attempt.stuck) continue;
      if (!best.offsets.empty() && (best.height <= good_enough || work > kWork)) return best;
      attempt.packing = Place(moments, attempt.order, occupancy, work);
      if (best.offsets.empty() || attempt.packing.height < best.height) best = attempt.packing;
      RaiseTop(moments, attempt);
    }
  }
  return best;
}

}  // namespace shale
