#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "engine/text/tokenizer/character.h"
#include "engine/text/tokenizer/pre_tokenizer.h"
#include "engine/text/tokenizer/regex.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

std::vector<size_t> Ends(Scanner scanner, const std::string& text) {
  std::vector<size_t> ends;
  for (size_t at = 0; at < text.size(); at = ends.back()) {
    ends.push_back(scanner(text.data() + at, text.data() + text.size()) - text.data());
  }
  return ends;
}

std::vector<size_t> Ends(const Regex& regex, const std::string& text) {
  std::vector<Match> parts;
  TextBudget budget(text.size());
  EXPECT_TRUE(regex.Find(text, budget, &parts).ok());
  std::vector<size_t> ends;
  for (const Match& part : parts) {
    EXPECT_TRUE(part.is_match);
    ends.push_back(part.end);
  }
  return ends;
}

class ScannerTest : public ::testing::TestWithParam<absl::string_view> {};

// Characters of every kind that a pattern tells apart, which all versions of Unicode since 6 know.
TEST_P(ScannerTest, FindsTheMatchesOfTheExpression) {
  const Scanner scanner = FindScanner(GetParam());
  ASSERT_NE(scanner, nullptr);
  const absl::StatusOr<Regex> regex = Regex::Compile(GetParam());
  ASSERT_TRUE(regex.ok()) << regex.status();
  const std::vector<std::string> alphabet = {
      " ",      " ",      " ",      "\n",     "\r",     "\t",     "\v",         "\u00a0",     "\u0085",
      "\u2028", "\u3000", "\u180e", "\u200b", "a",      "S",      "s",          "t",          "T",
      "re",     "VE",     "ll",     "lL",     "m",      "D",      "'",          "'",          "'",
      "\u017f", "\u00e9", "\u4e2d", "\u0301", "\u0940", "1",      "23",         "\u00b2",     "\u0663",
      "\u2167", ".",      "-",      "_",      "\u20ac", "\u3002", "\U0001F600", "\U00010330", "\u0000x"};
  std::mt19937 random(5);
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (int n = random() % 12 + 1; n > 0; --n) text += alphabet[random() % alphabet.size()];
    ASSERT_EQ(Ends(scanner, text), Ends(*regex, text)) << absl::CHexEscape(text);
  }
}

INSTANTIATE_TEST_SUITE_P(Patterns, ScannerTest, ::testing::Values(kGpt2Pattern, kLlama3Pattern, kQwen2Pattern));

TEST(RegexTest, RefusesWhatOnigurumaMayUnderstandDifferently) {
  for (const char* pattern : {R"(\h)", R"(\p{Alnum})", R"(\pL)", R"([a[b]])", "[a&&b]", "a{2}+", "a{,2}", "(?m:a)",
                              "a*", "", "(", R"([\S])", R"([\W])", "^*a", R"(a\b+)", "^", "a|"}) {
    const absl::StatusOr<Regex> regex = Regex::Compile(pattern);
    EXPECT_EQ(regex.status().code(), absl::StatusCode::kInvalidArgument) << pattern;
  }
  EXPECT_EQ(Regex::Compile(R"(\h+)").status().message(), R"("\\h+": "\\h" is not supported in regular expressions)");
}

TEST(CharacterTest, IllFormedBytesAreReplacedAsPythonDoes) {
  EXPECT_EQ(ReplaceIllFormed("a\xC3(b"), "a\uFFFD(b");
  EXPECT_EQ(ReplaceIllFormed("\xE2\x82"), "\uFFFD");
  EXPECT_EQ(ReplaceIllFormed("\xE2\x82\xE2\x82\xAC"), "\uFFFD€");
  EXPECT_EQ(ReplaceIllFormed("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(ReplaceIllFormed("\xF0\x9F\x98 \xC0\xAF\xFF"), "\uFFFD \uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(ReplaceIllFormed("é😀"), "é😀");
}

}  // namespace
}  // namespace shale
