// Writes Python pickles of dicts, lists, texts and integers, in protocol 2.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace shale {

// Writes one value, for example
//
//   PickleWriter pickle;
//   pickle.BeginDict();
//   pickle.Text("sizes");
//   pickle.BeginList();
//   for (int64_t size : sizes) pickle.Item().Integer(size);
//   pickle.EndList();
//   pickle.EndDict();
//   std::string bytes = pickle.Finish();
//
// A dict is its keys, each followed by its value. Equal texts are stored once. Other values are stored once if the
// caller remembers them.
class PickleWriter {
 public:
  PickleWriter();

  void Integer(int64_t value);
  void Text(absl::string_view utf8);
  void BeginDict();
  void EndDict();
  void BeginList();
  // Begins the next item of the innermost list, which the following call writes.
  PickleWriter& Item();
  void EndList();

  // Gives the value that was written last, or ended last, a number with which Recall() writes it again.
  uint32_t Remember();
  void Recall(uint32_t number);

  // Returns the pickle. Call it once, after the value is complete.
  std::string Finish();

 private:
  void Little32(uint32_t value);

  std::string bytes_;
  std::vector<int64_t> items_;  // Of each list that has not ended, the items since its last APPENDS.
  std::map<std::string, uint32_t, std::less<>> texts_;
  uint32_t remembered_ = 0;
};

}  // namespace shale
