#include "engine/strings/printing.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace shale {

std::string Wrap(absl::string_view text, size_t columns, size_t indent) {
  std::string wrapped;
  size_t column = indent;
  for (absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    if (column > indent && column + 1 + word.size() > columns) {
      absl::StrAppend(&wrapped, "\n", std::string(indent, ' '));
      column = indent;
    }
    if (column > indent) {
      wrapped += ' ';
      ++column;
    }
    absl::StrAppend(&wrapped, word);
    column += word.size();
  }
  return wrapped;
}

std::string Paragraph(absl::string_view text, size_t columns) { return Wrap(text, columns) + "\n"; }

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

std::string WithCommas(int64_t number) {
  std::string digits = absl::StrCat(number);
  const size_t first = number < 0 ? 1 : 0;
  for (size_t i = digits.size(); i > first + 3; i -= 3) digits.insert(i - 3, 1, ',');
  return digits;
}

std::string Plural(int64_t count, absl::string_view noun) {
  const bool sibilant = !noun.empty() && (noun.back() == 'h' || noun.back() == 's');
  return absl::StrCat(WithCommas(count), " ", noun, count == 1 ? "" : (sibilant ? "es" : "s"));
}

std::string Percent(double part, double whole) {
  if (whole == 0 || part == 0) return "0 %";
  return absl::StrFormat("%.1f %%", 100 * part / whole);
}

std::string FormatBytes(int64_t bytes) {
  constexpr absl::string_view kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  const std::string sign = bytes < 0 ? "-" : "";
  double value = std::abs(static_cast<double>(bytes));
  size_t unit = 0;
  // A value that would print as 1024 is printed as 1.0 of the next unit instead.
  while (unit + 1 < std::size(kUnits) && value >= (unit == 0 ? 1024 : 1023.5)) {
    value /= 1024;
    ++unit;
  }
  if (unit == 0 || value >= 99.95) return absl::StrCat(sign, WithCommas(std::llround(value)), " ", kUnits[unit]);
  std::string digits = value >= 9.995 ? absl::StrFormat("%.1f", value) : absl::StrFormat("%.2f", value);
  if (digits.size() == 4 && digits[1] == '.' && digits.back() == '0') digits.pop_back();
  return absl::StrCat(sign, digits, " ", kUnits[unit]);
}

std::string FormatFlops(double flops) {
  constexpr absl::string_view kUnits[] = {"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP", "ZFLOP"};
  size_t unit = 0;
  while (flops >= 999.5 && unit + 1 < std::size(kUnits)) {
    flops /= 1000;
    ++unit;
  }
  const int decimals = flops >= 99.95 || unit == 0 ? 0 : (flops >= 9.995 ? 1 : 2);
  return absl::StrFormat("%.*f %s", decimals, flops, kUnits[unit]);
}

std::string LossText(double loss) {
  std::string perplexity = absl::StrFormat("%.2f", std::exp(loss));
  const size_t point = perplexity.find('.');
  const size_t digits = point == std::string::npos ? 0 : point;  // None in "inf" and "nan".
  for (size_t i = digits; i > 3;) perplexity.insert(i -= 3, 1, ',');
  return absl::StrFormat("loss %.4f  perplexity %s", loss, perplexity);
}

std::string FormatSeconds(double seconds) {
  if (seconds >= 1e15) return absl::StrFormat("%.3g s", seconds);
  if (seconds >= 100) return absl::StrCat(WithCommas(std::llround(seconds)), " s");
  if (seconds >= 1) return absl::StrFormat("%.3g s", seconds);
  if (seconds >= 1e-3) return absl::StrFormat("%.3g ms", 1e3 * seconds);
  return absl::StrFormat("%.3g us", 1e6 * seconds);
}

std::string FormatDuration(double seconds) {
  const auto s = static_cast<int64_t>(std::llround(std::fmax(0, seconds)));
  if (s < 60) return absl::StrCat(s, "s");
  if (s < 3600) return absl::StrFormat("%dm %02ds", s / 60, s % 60);
  if (s < 86400) return absl::StrFormat("%dh %02dm", s / 3600, s / 60 % 60);
  return absl::StrFormat("%dd %02dh", s / 86400, s / 3600 % 24);
}

}  // namespace shale
