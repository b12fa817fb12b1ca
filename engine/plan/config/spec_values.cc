#include "engine/plan/config/spec_values.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace shale {

MixedData MixedDataFromText(absl::string_view text) {
  const size_t space = text.find(' ');
  const bool has_path = space != absl::string_view::npos && space + 1 < text.size();
  int64_t share = 0;
  const bool good = has_path && absl::SimpleAtoi(text.substr(0, space), &share) && share > 0 && share < kMixWindow;
  if (!good) return {.share = 0, .path = std::string(text)};
  return {.share = share, .path = std::string(text.substr(space + 1))};
}

std::string ToText(const MixedData& mixed) { return absl::StrCat(mixed.share, " ", mixed.path); }

EvaluationSource EvaluationSourceFromText(absl::string_view text) {
  constexpr size_t kLongest = 64;
  const absl::string_view name = text.substr(0, text.find(' '));
  const auto fits = [](char c) { return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-'; };
  const bool good = !name.empty() && name.size() <= kLongest && name.size() + 1 < text.size() &&
                    std::all_of(name.begin(), name.end(), fits);
  if (!good) return {.name = "", .path = std::string(text)};
  return {.name = std::string(name), .path = std::string(text.substr(name.size() + 1))};
}

std::string ToText(const EvaluationSource& source) { return absl::StrCat(source.name, " ", source.path); }

}  // namespace shale
