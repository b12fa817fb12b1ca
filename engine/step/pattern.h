// Name patterns of job specs: `*` matches any run of characters, every other character matches itself.
#pragma once

#include "absl/strings/string_view.h"

namespace shale {

// Returns whether the pattern matches the entire name.
inline bool MatchesPattern(absl::string_view pattern, absl::string_view name) {
  // After a mismatch only the latest `*` takes one more character. This needs no recursion and is linear in practice.
  size_t p = 0, n = 0, star = absl::string_view::npos, after_star = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      after_star = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != absl::string_view::npos) {
      p = star + 1;
      n = ++after_star;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace shale
