// Formats numbers and tables for people.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace shale {

// Returns "1,234,567".
std::string WithCommas(int64_t number);
// Returns "1.23 PFLOP", "45.6 MFLOP": three significant digits, powers of 1000.
std::string FormatFlops(double flops);
// Returns `part` as a percentage of `whole`: "12.3 %"; "0 %" if either is 0.
std::string Percent(double part, double whole);
// Returns "1 rank", "2 ranks", "2 batches".
std::string Plural(int64_t count, absl::string_view noun);

// Returns the rows of a table with aligned columns: the first column and the last (a remark) to the left, the others to
// the right. Each line starts with two spaces and ends in a newline.
std::string Table(const std::vector<std::vector<std::string>>& rows);

// Breaks the text at spaces into lines of at most `columns`; each ends in a newline.
std::string Paragraph(absl::string_view text, size_t columns = 110);

}  // namespace shale
