#include "engine/text/layout.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
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

}  // namespace shale
