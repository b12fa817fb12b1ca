#include "engine/strings/printing.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

TEST(WrapTest, BreaksAtSpaces) {
  EXPECT_EQ(Wrap("", 7), "");
  EXPECT_EQ(Wrap("one two  three", 7), "one two\nthree");
  EXPECT_EQ(Wrap("one two three", 6), "one\ntwo\nthree");
  EXPECT_EQ(Wrap("a verylongword b", 5), "a\nverylongword\nb");
}

TEST(WrapTest, IndentsAllLinesButTheFirst) { EXPECT_EQ(Wrap("one two three", 9, 2), "one two\n  three"); }

TEST(ParagraphTest, EndsTheLastLine) { EXPECT_EQ(Paragraph("one two  three", 7), "one two\nthree\n"); }

TEST(TableTest, AlignsColumns) { EXPECT_EQ(Table({{"a", "1", "x"}, {"bb", "22"}}), "  a    1  x\n  bb  22\n"); }

}  // namespace
}  // namespace shale
