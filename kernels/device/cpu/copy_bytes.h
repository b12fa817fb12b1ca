// Copies of memory that bypass the caches if they are large.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shale {

// Like memcpy, for destinations that are not read soon. The stores bypass the caches, so that a cache line is not read
// before it is written. A copy from memory to memory then moves two bytes per byte copied instead of three, and takes
// two thirds of the time. Needs no alignment. This is a plain memcpy on processors without such stores, and in GCC
// builds with a sanitizer, which would not see them.
void CopyPastCaches(std::byte* to, const std::byte* from, int64_t size_bytes);

// Data of this size fills most of a core's own caches, so a later read would not find it there anyway, unless it came
// at once.
inline constexpr int64_t kLargeCopyBytes = int64_t{1} << 20;

// Like memcpy. Bypasses the caches if it copies at least kLargeCopyBytes.
void CopyBytes(std::byte* to, const std::byte* from, int64_t size_bytes);

}  // namespace shale
