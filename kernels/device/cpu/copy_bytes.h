// Memory copies that bypass the caches when they are large.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shale {

// A memcpy for destinations that are not read soon. Its stores bypass the caches, so that a cache line is not read
// before it is written. From memory to memory it moves two bytes per byte copied, where ordinary stores move three, and
// takes two thirds of the time. Needs no alignment. This is a plain memcpy on processors without such stores, and in
// GCC builds with a sanitizer, which would not see them.
void CopyPastCaches(std::byte* to, const std::byte* from, int64_t size_bytes);

// Data of this size exceeds most of a core's own caches, so it is not found there unless it is read at once.
inline constexpr int64_t kLargeCopyBytes = int64_t{1} << 20;

// A memcpy that bypasses the caches if it copies at least kLargeCopyBytes.
void CopyBytes(std::byte* to, const std::byte* from, int64_t size_bytes);

}  // namespace shale
