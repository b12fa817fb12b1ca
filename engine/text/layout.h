// Lays out text for people: lines of limited width, columns.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace shale {

// Breaks `text` at spaces into lines of at most `columns` columns; only a longer word makes a longer line. Lines after
// the first start with `indent` spaces. The first line does not, but leaves room for them. The last line has no line
// end.
std::string Wrap(absl::string_view text, size_t columns, size_t indent = 0);

// Does the same without indentation, and ends the last line with a newline.
std::string Paragraph(absl::string_view text, size_t columns = 110);

// Returns the rows of a table with aligned columns. Aligns the first column and the last, which is a remark, to the
// left, and the others to the right. Each line starts with two spaces and ends in a newline.
std::string Table(const std::vector<std::vector<std::string>>& rows);

}  // namespace shale
