// PickleWriter writes Python pickles of dicts, lists, texts and integers, in protocol 2, as PyTorch's viewer of memory
// snapshots reads them (MemorySnapshot in engine/api/plan_text.h).
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
// Write a dict as its keys, each followed by its value. The pickle stores equal texts once. To store another value
// once, use Remember and Recall.
class PickleWriter {
 public:
  PickleWriter();

  void Integer(int64_t value);
  void Text(absl::string_view utf8);
  void BeginDict();
  void EndDict();
  void BeginList();
  // Begins the next item of the innermost open list. The next call writes the item.
  PickleWriter& Item();
  void EndList();

  // Remember returns a number for the value that was written or ended last. Recall writes the value with this number
  // again, as a reference.
  uint32_t Remember();
  void Recall(uint32_t number);

  // Returns the pickle. Call it once, after the value is complete.
  std::string Finish();

 private:
  void Little32(uint32_t value);

  std::string bytes_;
  std::vector<int64_t> items_;  // By open list: the number of items since its last APPENDS.
  std::map<std::string, uint32_t, std::less<>> texts_;
  uint32_t remembered_ = 0;
};

}  // namespace shale
