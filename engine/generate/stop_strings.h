// StopStrings: ends a text where one of some strings begins.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace shale {

// Holds back the end of a text while it may be the beginning of a stop string, which may come in several pieces. Used
// by one thread.
class StopStrings {
 public:
  // Empty strings count as none.
  explicit StopStrings(std::vector<std::string> strings);

  // Adds a piece of text. Returns what can be shown now: nothing of a stop string, and nothing behind it.
  std::string Push(absl::string_view piece);
  // Ends the text. Returns what was held back.
  std::string Finish();
  // Returns whether a stop string came. Push returns nothing afterwards.
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> strings_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace shale
