// Marks number everything that a rank enqueues, over all its programs: each instruction that it issues, or each graph
// that it launches. With them a stream can tell how far it came (Stream::Mark). Not every number reaches a stream. Mark
// 0 stands for none, so 1 follows the highest number.
#pragma once

#include <cstdint>

namespace shale {

inline uint32_t MarkAfter(uint32_t mark) { return mark == UINT32_MAX ? 1 : mark + 1; }

// Returns how often MarkAfter has to be applied to `from` to reach `to`: 1 if `to` follows `from`. If `to` is the
// smaller number, the way leads around, past the highest number.
inline uint32_t MarksBetween(uint32_t from, uint32_t to) { return to - from - (to < from ? 1 : 0); }

}  // namespace shale
