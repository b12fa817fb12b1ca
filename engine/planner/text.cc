#include "engine/planner/text.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace shale {

std::string WithCommas(int64_t number) {
  const std::string digits = absl::StrCat(number);
  const size_t sign = number < 0 ? 1 : 0;
  std::string text = digits.substr(0, sign);
  for (size_t i = sign; i < digits.size(); ++i) {
    if (i > sign && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string FormatFlops(double flops) {
  constexpr const char* kUnits[] = {"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP", "ZFLOP"};
  size_t unit = 0;
  while (flops >= 999.5 && unit + 1 < std::size(kUnits)) {
    flops /= 1000;
    ++unit;
  }
  const int decimals = flops >= 99.95 || unit == 0 ? 0 : (flops >= 9.995 ? 1 : 2);
  return absl::StrFormat("%.*f %s", decimals, flops, kUnits[unit]);
}

std::string Percent(double part, double whole) {
  if (whole == 0 || part == 0) return "0 %";
  return absl::StrFormat("%.1f %%", 100 * part / whole);
}

std::string Plural(int64_t count, absl::string_view noun) {
  const bool sibilant = !noun.empty() && (noun.back() == 'h' || noun.back() == 's');
  return absl::StrCat(WithCommas(count), " ", noun, count == 1 ? "" : (sibilant ? "es" : "s"));
}

std::string Table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line = " ";
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string space(widths[c] - row[c].size(), ' ');
      const bool left = c == 0 || c + 1 == widths.size();
      absl::StrAppend(&line, c == 0 ? " " : "  ", left ? row[c] : space, left ? space : row[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

std::string Paragraph(absl::string_view text, size_t columns) {
  std::string wrapped;
  size_t used = 0;
  for (absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    if (used > 0 && used + 1 + word.size() > columns) {
      wrapped += '\n';
      used = 0;
    }
    if (used > 0) wrapped += ' ';
    used += word.size() + (used > 0 ? 1 : 0);
    wrapped.append(word.data(), word.size());
  }
  return wrapped + "\n";
}

}  // namespace shale
