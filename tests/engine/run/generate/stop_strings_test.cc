#include "engine/run/generate/generated_text.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

// Pushes `text` in pieces of `size` bytes, and returns all that is shown.
std::string Shown(const std::vector<std::string>& strings, const std::string& text, size_t size, bool* stopped) {
  StopStrings stops(strings);
  std::string shown;
  for (size_t begin = 0; begin < text.size(); begin += size) shown += stops.Push(text.substr(begin, size));
  *stopped = stops.stopped();
  return shown + stops.Finish();
}

TEST(StopStrings, EndATextWhereverItIsCut) {
  struct Case {
    std::vector<std::string> strings;
    std::string text, shown;
    bool stopped;
  };
  for (const Case& c : std::vector<Case>{
           {{"</s>"}, "one</s>two", "one", true},
           {{"</s>"}, "one</", "one</", false},
           {{"aab"}, "aaaab", "aa", true},
           {{"stop", "op"}, "no stop here", "no ", true},
           {{"stop", " s"}, "no stop here", "no", true},
           {{"\nUser:", "<|end|>"}, "hi\nUse<|end|>", "hi\nUse", true},
           {{"a", ""}, "bbb", "bbb", false},
           {{}, "all of it", "all of it", false},
           {{"x"}, "x", "", true},
       }) {
    for (size_t size = 1; size <= c.text.size(); ++size) {
      bool stopped = false;
      EXPECT_EQ(Shown(c.strings, c.text, size, &stopped), c.shown) << c.text << " by " << size;
      EXPECT_EQ(stopped, c.stopped) << c.text << " by " << size;
    }
  }
}

TEST(StopStrings, ShowWhatCannotBelongToOne) {
  StopStrings stops({"abc"});
  EXPECT_EQ(stops.Push("xa"), "x");
  EXPECT_EQ(stops.Push("b"), "");
  EXPECT_EQ(stops.Push("ab"), "ab");
  EXPECT_EQ(stops.Push("c!"), "");
  EXPECT_TRUE(stops.stopped());
  EXPECT_EQ(stops.Push("abc"), "");
  EXPECT_EQ(stops.Finish(), "");
}

}  // namespace
}  // namespace shale
