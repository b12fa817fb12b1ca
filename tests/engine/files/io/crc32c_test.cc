#include <numeric>
#include <string>

#include "engine/files/io/checksums.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

// Computes the CRC bit by bit, as the specification defines it.
uint32_t Plain(absl::string_view bytes) {
  uint32_t crc = 0xffffffff;
  for (unsigned char byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78 : 0);
  }
  return ~crc;
}

TEST(Crc32cTest, AgreesWithTheStandard) {
  // RFC 3720, appendix B.4, and the usual check value.
  std::string ascending(32, '\0');
  std::iota(ascending.begin(), ascending.end(), '\0');
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283);
  EXPECT_EQ(Crc32c(""), 0);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aa);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43);
  EXPECT_EQ(Crc32c(ascending), 0x46dd794e);
  EXPECT_EQ(Crc32c(std::string(ascending.rbegin(), ascending.rend())), 0x113fdb5c);
}

TEST(Crc32cTest, EveryLengthAndAlignmentAgreesWithPlainLoops) {
  std::string bytes;
  uint32_t state = 1;
  for (int i = 0; i < 5000; ++i) bytes.push_back(static_cast<char>((state = state * 1664525 + 1013904223) >> 24));
  const absl::string_view all = bytes;
  for (size_t size = 0; size < 600; ++size) {
    const absl::string_view part = all.substr(size % 65, size);
    EXPECT_EQ(Crc32c(part), Plain(part)) << size;
  }
  EXPECT_EQ(Crc32c(all), Plain(all));
}

TEST(Crc32cTest, GoesOnWhereItStopped) {
  const absl::string_view text = "the quick brown fox jumps over the lazy dog, and then some more of the same";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    EXPECT_EQ(Crc32c(text.substr(cut), Crc32c(text.substr(0, cut))), Crc32c(text)) << cut;
  }
}

TEST(Crc64Test, ThatOfBothIsThatOfTheWhole) {
  std::string bytes;
  uint32_t state = 1;
  for (int i = 0; i < 70000; ++i) bytes.push_back(static_cast<char>((state = state * 1664525 + 1013904223) >> 24));
  const absl::string_view all = bytes;
  for (const size_t cut : {0, 1, 2, 255, 256, 4097, 65535, 69999, 70000}) {
    const absl::string_view first = all.substr(0, cut), second = all.substr(cut);
    EXPECT_EQ(Crc64OfBoth(Crc64(first), Crc64(second), std::ssize(second)), Crc64(all)) << cut;
  }
}

}  // namespace
}  // namespace shale
