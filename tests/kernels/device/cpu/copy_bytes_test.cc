#include "kernels/device/cpu/copy_bytes.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"

namespace shale {
namespace {

constexpr std::byte kUntouched{0xee};

// Copies between several alignments within a cache line. Expects the right bytes, and no change beside them.
void CheckCopy(void (*copy)(std::byte*, const std::byte*, int64_t), int64_t size_bytes) {
  SCOPED_TRACE(size_bytes);
  constexpr int64_t kLine = 64;
  std::vector<std::byte> from(size_bytes + kLine), to(size_bytes + 3 * kLine);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 31 + i / 251);
  for (int64_t offset = 0; offset <= kLine; offset += 7) {
    std::fill(to.begin(), to.end(), kUntouched);
    const auto source = from.begin() + (offset * 5) % kLine, target = to.begin() + kLine + offset;
    copy(&*target, &*source, size_bytes);
    EXPECT_TRUE(std::equal(source, source + size_bytes, target)) << offset;
    const auto untouched = [](std::byte b) { return b == kUntouched; };
    EXPECT_TRUE(std::all_of(to.begin(), target, untouched)) << offset;
    EXPECT_TRUE(std::all_of(target + size_bytes, to.end(), untouched)) << offset;
  }
}

TEST(CopyBytesTest, CopiesWhatWasAskedFor) {
  for (const int64_t size : {0, 1, 63, 64, 65, 127, 128, 4099}) CheckCopy(CopyPastCaches, size);
  for (const int64_t size : {int64_t{0}, int64_t{100}, kLargeCopyBytes - 1, kLargeCopyBytes, kLargeCopyBytes + 77}) {
    CheckCopy(CopyBytes, size);
  }
}

}  // namespace
}  // namespace shale
