// Copies of memory that know of caches.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shale {

// memcpy to what is not read soon: its stores go past the caches, so that a line is not read before it is written. From
// memory to memory it moves two bytes for each, where ordinary stores move three, and takes two thirds of the time.
// Needs no alignment. Processors without such stores copy plainly, and so do builds of GCC with a sanitizer, which
// would not see them.
void CopyPastCaches(std::byte* to, const std::byte* from, int64_t size_bytes);

// What is larger than most of a core's own caches will not be found there when it is read, unless at once.
inline constexpr int64_t kLargeCopyBytes = int64_t{1} << 20;

// memcpy, past the caches where it is large.
void CopyBytes(std::byte* to, const std::byte* from, int64_t size_bytes);

}  // namespace shale
