// Text for people: numbers with their units, lines of limited width, columns.
#pragma once

#include <cstddef>
#include <cstdint>
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

// Returns "1,234,567".
std::string WithCommas(int64_t number);
// Returns "1 rank", "2 ranks", "2,000 batches".
std::string Plural(int64_t count, absl::string_view noun);
// Returns `part` as a percentage of `whole`: "12.3 %". Returns "0 %" if either is 0.
std::string Percent(double part, double whole);
// Returns "31.2 GiB", "512 MiB", "1.5 KiB" or "17 B": at most three significant digits, in powers of 1024.
std::string FormatBytes(int64_t bytes);
// Returns "1.23 PFLOP" or "45.6 MFLOP": three significant digits, in powers of 1000.
std::string FormatFlops(double flops);
// Returns "loss 7.0596  perplexity 1,163.96" of a mean loss in nats: the perplexity is its exponential.
std::string LossText(double loss);
// Returns "1,930 s", "1.93 s", "12.3 ms" or "450 us": three significant digits.
std::string FormatSeconds(double seconds);
// Returns a duration in its two largest units: "8s", "1m 32s", "2h 05m", "3d 04h".
std::string FormatDuration(double seconds);

}  // namespace shale
