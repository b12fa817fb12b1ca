#include "engine/data/best_fit.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "kernels/check.h"

namespace shale {

std::vector<int64_t> BestFit(absl::Span<const int32_t> sizes, int32_t capacity) {
  std::vector<int64_t> items(sizes.size());
  std::iota(items.begin(), items.end(), 0);
  std::stable_sort(items.begin(), items.end(), [&](int64_t a, int64_t b) { return sizes[a] > sizes[b]; });

  std::vector<int64_t> bins(sizes.size());
  std::map<int32_t, std::vector<int64_t>> open;  // The bins that are not full, by the room that they have left.
  int64_t count = 0;
  for (const int64_t item : items) {
    SHALE_CHECK(sizes[item] >= 1 && sizes[item] <= capacity) << "item " << item << " of size " << sizes[item];
    int32_t room = capacity;
    const auto best = open.lower_bound(sizes[item]);
    if (best == open.end()) {
      bins[item] = count++;
    } else {
      room = best->first;
      bins[item] = best->second.back();
      best->second.pop_back();
      if (best->second.empty()) open.erase(best);
    }
    if (room > sizes[item]) open[room - sizes[item]].push_back(bins[item]);
  }

  std::vector<int64_t> number(count, -1);
  int64_t next = 0;
  for (int64_t& bin : bins) {
    if (number[bin] < 0) number[bin] = next++;
    bin = number[bin];
  }
  return bins;
}

}  // namespace shale
