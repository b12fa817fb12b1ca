#include <string>
#include <vector>

#include "engine/strings/utf8.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Pieces(const std::string& bytes) {
  Utf8Stream stream;
  std::vector<std::string> pieces;
  for (char c : bytes) pieces.push_back(stream.Push(static_cast<uint8_t>(c)));
  pieces.push_back(stream.Finish());
  return pieces;
}

std::string Through(const std::string& bytes) {
  std::string all;
  for (const std::string& piece : Pieces(bytes)) all += piece;
  return all;
}

TEST(Utf8StreamTest, CharactersComeOutWhenTheyAreComplete) {
  EXPECT_THAT(Pieces("a\u00e9\u20ac"), ElementsAre("a", "", "\u00e9", "", "", "\u20ac", ""));
}

TEST(Utf8StreamTest, TextPassesUnchanged) {
  const std::string text = "plain, \u00e9t\u00e9, \u20ac, \U0001F600\n";
  EXPECT_EQ(Through(text), text);
}

// Section 3.9 of the Unicode standard asks for one U+FFFD for each maximal subpart.
TEST(Utf8StreamTest, IllFormedBytesBecomeReplacementCharacters) {
  EXPECT_EQ(Through("a\xff"
                    "b"),
            "a\uFFFDb");
  EXPECT_EQ(Through("\x80\x80"), "\uFFFD\uFFFD");
  EXPECT_EQ(Through("\xe2\x82"
                    "a"),
            "\uFFFDa");
  EXPECT_EQ(Through("\xe2\x82\xe2\x82\xac"), "\uFFFD\u20ac");
  EXPECT_EQ(Through("\xf0\x9f"), "\uFFFD");
  EXPECT_EQ(Through("\xc0\xaf"), "\uFFFD\uFFFD");
  EXPECT_EQ(Through("\xed\xa0\x80"), "\uFFFD\uFFFD\uFFFD");
}

TEST(Utf8StreamTest, WhateverComesInUtf8ComesOut) {
  std::string bytes;
  uint32_t state = 1;
  for (int i = 0; i < 20000; ++i) {
    state = state * 1664525 + 1013904223;
    bytes.push_back(static_cast<char>(state >> 24));
  }
  EXPECT_TRUE(IsUtf8(Through(bytes)));
}

}  // namespace
}  // namespace shale
