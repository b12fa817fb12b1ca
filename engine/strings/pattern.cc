#include "engine/strings/pattern.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace shale {

bool MatchesAny(const std::vector<std::string>& patterns, absl::string_view name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return MatchesPattern(pattern, name); });
}

int FirstMatch(const std::vector<std::vector<std::string>>& lists, absl::string_view name) {
  const auto found =
      std::find_if(lists.begin(), lists.end(), [&](const auto& patterns) { return MatchesAny(patterns, name); });
  return found == lists.end() ? -1 : static_cast<int>(found - lists.begin());
}

std::string MatchesNone(absl::string_view field, size_t index, absl::string_view pattern, absl::string_view what,
                        const std::vector<std::string>& names) {
  if (std::any_of(names.begin(), names.end(), [&](const auto& name) { return MatchesPattern(pattern, name); })) {
    return "";
  }
  constexpr size_t kNamesShown = 12;
  const auto shown = names.begin() + static_cast<int64_t>(std::min(names.size(), kNamesShown));
  return absl::StrCat(field, "[", index, "]: \"", pattern, "\" matches no ", what, " of the model; found ",
                      names.empty() ? "none" : absl::StrJoin(names.begin(), shown, ", "),
                      names.size() > kNamesShown ? ", ..." : "", "; * matches any run of characters");
}

}  // namespace shale
