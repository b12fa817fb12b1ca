// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace shale {

// "1,234,567".
std::string WithCommas(int64_t number);
// "1.23 PFLOP", "45.6 MFLOP": three significant digits, powers of 1000.
std::string FormatFlops(double flops);
// "12.3 %" of `whole`; "0 %" when that is nothing.
std::string Percent(double part, double whole);
// "1 rank", "2 ranks", "2 batches".
std::string Plural(int64_t count, absl::string_view noun);

// Rows of a table, aligned by column: the first to the left, the others to the right, the last (a remark) to the left.
// Each line starts with two spaces and ends in a newline.
std::string Table(const std::vector<std::vector<std::string>>& rows);

// Breaks the text at spaces into lines of at most `columns`; each ends in a newline.
std::string Paragraph(absl::string_view text, size_t columns = 110);

}  // namespace shale
