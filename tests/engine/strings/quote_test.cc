#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/strings/messages.h"
#include "engine/strings/utf8.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

TEST(QuotedTest, EscapesWhatIsNotText) {
  EXPECT_EQ(Quoted(""), "\"\"");
  EXPECT_EQ(Quoted("a\"b\n\x01"), "\"a\\\"b\\n\\001\"");
  EXPECT_EQ(Quoted("\u00fcber"), "\"\u00fcber\"");
  EXPECT_EQ(Quoted("a\xFF"), "\"a\\377\"");
}

TEST(QuotedTest, CutsLongTextBetweenCharacters) {
  EXPECT_EQ(Quoted(std::string(60, 'x')), "\"" + std::string(60, 'x') + "\"");
  EXPECT_EQ(Quoted(std::string(61, 'x')), "\"" + std::string(60, 'x') + "...\"");
  EXPECT_EQ(Quoted(std::string(59, 'x') + "\u00fc"), "\"" + std::string(59, 'x') + "...\"");
}

// Regression: names and reasons of other processes were printed with their escape sequences, which can clear the
// screen, set the title of the window, or hide what stands before.
TEST(PrintableTest, NothingCommandsATerminal) {
  EXPECT_EQ(Printable("host-1 \u00fcber \u20AC\U0001F600"), "host-1 \u00fcber \u20AC\U0001F600");
  EXPECT_EQ(Printable("a\x1B[2J\x1B]0;title\x07\rb\x7F"), "a\\033[2J\\033]0;title\\007\\rb\\177");
  EXPECT_EQ(Printable("a\u009B31m\u202Eb\u2066"), "a\\302\\23331m\\342\\200\\256b\\342\\201\\246");
  EXPECT_EQ(Printable("\xFF\xC3("), "\\377\\303(");
  EXPECT_EQ(Printable("a\tb\nc"), "a\tb\nc");
  EXPECT_EQ(PrintableLine("a\tb\nc"), "a\\tb\\nc");
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  for (const std::string& text : {Printable(bytes), Printable(bytes + bytes)}) {
    EXPECT_TRUE(IsUtf8(text));
    EXPECT_EQ(text.find_first_of("\x1B\x07\r\x7F"), text.npos);
  }
}

TEST(JsonQuoteTest, EscapesWhatMustBe) {
  EXPECT_EQ(JsonQuote("a\"b\\c\n\x01/\x7F"), "\"a\\\"b\\\\c\\u000a\\u0001/\\u007f\"");
  EXPECT_EQ(JsonQuote("über \U0001F600"), "\"über \U0001F600\"");
  EXPECT_EQ(JsonQuote("a\xFF\xC3"), "\"a\uFFFD\uFFFD\"");
  EXPECT_EQ(JsonQuote("\xE2\x82"
                      "b"),
            "\"\uFFFD\uFFFD"
            "b\"");
}

TEST(JsonQuoteTest, EveryStringReadsBack) {
  std::string text;
  for (int c = 0; c < 128; ++c) text += static_cast<char>(c);
  text += "äöü\u20AC\U0001F600";
  EXPECT_EQ(nlohmann::json::parse(JsonQuote(text), nullptr, false).get<std::string>(), text);
}

TEST(ShortJsonQuoteTest, ShowsThatTextWasCut) {
  EXPECT_EQ(ShortJsonQuote("abc", 3), "\"abc\"");
  EXPECT_EQ(ShortJsonQuote("abcd", 3), "\"abc\"...");
  EXPECT_TRUE(IsUtf8(ShortJsonQuote("ab\u00fc", 3)));
}

TEST(NearestTest, FindsWhatWasMeant) {
  const std::vector<std::string> names = {"micro_batch", "global_batch", "FULL_SHARD"};
  EXPECT_EQ(Nearest("mikro_batch", names), "micro_batch");
  EXPECT_EQ(Nearest("full_shard", names), "FULL_SHARD");
  EXPECT_EQ(Nearest("dropout", names), "");
  // Two neighbors that changed places are one slip, and were once two, which a short name does not bear.
  EXPECT_EQ(Nearest("widht", {"depth", "width"}), "width");
  EXPECT_EQ(Nearest("iwdht", {"depth", "width"}), "");
  EXPECT_EQ(Nearest(std::string(1000, 'x'), names), "");
}

}  // namespace
}  // namespace shale
