// Helpers that the benches share: medians, means, tables, the machine's description, and the placement of large
// buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace shale {

// Return the median, and the mean. REQUIRES: `values` is not empty.
double Median(std::vector<double> values);
double Mean(const std::vector<double>& values);

// A Markdown table. Pads its columns, so that it also reads well as plain text.
class MarkdownTable {
 public:
  struct Column {
    std::string title;
    bool text = false;  // Text is aligned to the left, numbers to the right.
  };
  explicit MarkdownTable(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void Add(std::vector<std::string> cells);  // Adds a row. REQUIRES: one cell per column.
  bool empty() const { return rows_.empty(); }
  std::string ToString() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Returns `value` with three significant digits: "0.0123", "45.6", "1234".
std::string Digits(double value);
// Returns a time with its unit: "123 us", "4.56 ms", "1.23 s".
std::string Time(double seconds);
// Returns a size in units of 10^6 bytes: "4.19 MB".
std::string Megabytes(double bytes);

// Return the processor's model name, and how many processors this process may use.
std::string ProcessorName();
int ProcessorCount();
// Returns the current time: "2026-11-30 18:05 UTC".
std::string Today();

// Writes `json` and a line end to the file `path`, and replaces an existing file.
absl::Status WriteJson(const std::string& path, absl::string_view json);

// The gap between two large buffers: larger than a page, a multiple of 256, and not a power of two. Addresses a large
// power of two apart share memory banks and the sets of some caches. Accesses that move through two such buffers at the
// same time are half as fast, which would distort measurements.
inline constexpr int64_t kStaggerBytes = 64 * 1024 + 8 * 1024 + 512;

}  // namespace shale
