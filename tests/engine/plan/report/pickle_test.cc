#include <string>

#include "engine/plan/report/pickle_writer.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

// Python's pickle.loads reads these bytes as {"a": [1, -1, 2**40], "b": {"a": "a"}}.
TEST(PickleWriter, WritesProtocol2) {
  PickleWriter pickle;
  pickle.BeginDict();
  pickle.Text("a");
  pickle.BeginList();
  pickle.Item().Integer(1);
  pickle.Item().Integer(-1);
  pickle.Item().Integer(int64_t{1} << 40);
  pickle.EndList();
  pickle.Text("b");
  pickle.BeginDict();
  pickle.Text("a");
  pickle.Text("a");
  pickle.EndDict();
  pickle.EndDict();
  const auto text = [](char letter, char number) {
    return std::string("X\1\0\0\0", 5) + letter + std::string("r", 1) + number + std::string(3, '\0');
  };
  const std::string again("j\0\0\0\0", 5);
  const std::string wanted = std::string("\x80\2}(", 4) + text('a', 0) + "](" + std::string("J\1\0\0\0", 5) +
                             "J\xff\xff\xff\xff" + std::string("\x8a\x08\0\0\0\0\0\1\0\0", 10) + "e" + text('b', 1) +
                             "}(" + again + again + "uu.";
  EXPECT_EQ(pickle.Finish(), wanted);
}

TEST(PickleWriter, AppendsToLongListsInParts) {
  PickleWriter pickle;
  pickle.BeginList();
  for (int i = 0; i < 2001; ++i) pickle.Item().Integer(i);
  pickle.EndList();
  const std::string bytes = pickle.Finish();
  // 2001 items make two full APPENDS before the last one.
  EXPECT_EQ(bytes.size(), std::string("\x80\2](", 4).size() + 2001 * 5 + 2 * 2 + 2);
}

TEST(PickleWriter, RecallsWhatItRemembers) {
  PickleWriter pickle;
  pickle.BeginList();
  pickle.Item().Integer(7);
  const uint32_t seven = pickle.Remember();
  pickle.Item().Recall(seven);
  pickle.EndList();
  EXPECT_EQ(pickle.Finish(), std::string("\x80\2](J\7\0\0\0r\0\0\0\0j\0\0\0\0e.", 21));
}

}  // namespace
}  // namespace shale
