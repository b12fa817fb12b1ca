// Name patterns of job specs: `*` matches any run of characters, every other character matches itself.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

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

// Returns whether one of the patterns matches the name.
bool MatchesAny(const std::vector<std::string>& patterns, absl::string_view name);

// Returns the index of the first list with a pattern that matches the name, or -1 if none has one.
int FirstMatch(const std::vector<std::vector<std::string>>& lists, absl::string_view name);

// Returns an empty string if the pattern matches one of the names. If not, returns a message that says so: which
// pattern of which field it is, `what` the names name, and the first of them.
std::string MatchesNone(absl::string_view field, size_t index, absl::string_view pattern, absl::string_view what,
                        const std::vector<std::string>& names);

}  // namespace shale
