// Marks: a rank numbers all issues of all its programs, so that its streams can tell how far they came (Stream::Mark).
// Mark 0 stands for none, so 1 follows the highest number.
#pragma once

#include <cstdint>

namespace shale {

inline uint32_t MarkAfter(uint32_t mark) { return mark == UINT32_MAX ? 1 : mark + 1; }

// Returns how many marks lead from `from` to `to`, once around if `to` is an older one: 1 if `to` follows `from`.
inline uint32_t MarksBetween(uint32_t from, uint32_t to) { return to - from - (to < from ? 1 : 0); }

}  // namespace shale
