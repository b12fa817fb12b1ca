#include "engine/strings/utf8.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

// Follows the definition for one character: decodes the bytes, then requires an allowed code point in its shortest
// form.
bool IsCharacter(const std::vector<uint8_t>& bytes) {
  const int length = bytes.size();
  uint32_t code = length == 1 ? bytes[0] : bytes[0] & (0xFF >> (length + 1));
  const uint8_t lead_mask[] = {0x80, 0xE0, 0xF0, 0xF8};
  const uint8_t lead[] = {0x00, 0xC0, 0xE0, 0xF0};
  if ((bytes[0] & lead_mask[length - 1]) != lead[length - 1]) return false;
  for (int i = 1; i < length; ++i) {
    if ((bytes[i] & 0xC0) != 0x80) return false;
    code = code << 6 | (bytes[i] & 0x3F);
  }
  const uint32_t first[] = {0, 0x80, 0x800, 0x10000};
  return code >= first[length - 1] && code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
}

TEST(Utf8Test, AgreesWithTheDefinitionAroundEveryBoundary) {
  const uint8_t probes[] = {0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF,
                            0xE0, 0xE1, 0xEC, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF};
  for (const uint8_t a : probes) {
    // The length that the lead byte announces; any other sequence is ill-formed or several characters.
    const int length = a < 0x80 ? 1 : a < 0xE0 ? 2 : a < 0xF0 ? 3 : 4;
    for (const uint8_t b : probes) {
      for (const uint8_t c : probes) {
        for (const uint8_t d : probes) {
          std::vector<uint8_t> bytes = {a, b, c, d};
          bytes.resize(length);
          const absl::string_view text(reinterpret_cast<const char*>(bytes.data()), length);
          ASSERT_EQ(IsUtf8(text), IsCharacter(bytes)) << int{a} << " " << int{b} << " " << int{c} << " " << int{d};
        }
      }
    }
  }
}

TEST(Utf8Test, FindsTheErrorWhereverTheStreamIsCut) {
  const std::string good = "plain text, über 16 bytes long, \U0001F600 \u20AC";
  for (const std::string bad : {"\xC3(", "\xFF", "\xE2\x82", "\xF0\x9F\x98", "\xED\xA0\x80"}) {
    const std::string text = good + bad;
    for (size_t cut = 0; cut <= text.size(); ++cut) {
      Utf8Validator validator;
      const bool ok = validator.Feed(absl::string_view(text).substr(0, cut)) &&
                      validator.Feed(absl::string_view(text).substr(cut)) && validator.Finish();
      ASSERT_FALSE(ok);
      ASSERT_EQ(validator.error_offset(), good.size());
    }
  }
  for (size_t cut = 0; cut <= good.size(); ++cut) {
    Utf8Validator validator;
    EXPECT_TRUE(validator.Feed(absl::string_view(good).substr(0, cut)));
    EXPECT_TRUE(validator.Feed(absl::string_view(good).substr(cut)));
    EXPECT_TRUE(validator.Finish());
  }
}

TEST(FindNonTextTest, FindsTheFirstByteThatIsNotText) {
  EXPECT_EQ(FindNonText("plain\ttext\r\n\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80"), absl::string_view::npos);
  for (const char* bad : {"ab\xff", "ab\xc0\xaf", "ab\xe0\x80\x80", "ab\xed\xa0\x80", "ab\xf4\x90\x80\x80", "ab\xc3",
                          "ab\xe2\x82", "ab\x01", "ab\x7f", "ab\x80"}) {
    EXPECT_EQ(FindNonText(bad), 2) << bad;
  }
  EXPECT_EQ(FindNonText("a\x01\xff"), 1);
}

TEST(IsLineOfTextTest, HasNoTabsAndLineEnds) {
  EXPECT_TRUE(IsLineOfText("plain \xe2\x82\xac"));
  for (const char* bad : {"a\tb", "a\n", "\r", "a\x7f", "\xff"}) EXPECT_FALSE(IsLineOfText(bad)) << bad;
}

}  // namespace
}  // namespace shale
