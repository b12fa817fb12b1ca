// What the benches share: medians, tables, what the machine is, and where large buffers lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace shale {

// REQUIRES: not empty.
double Median(std::vector<double> values);

// A Markdown table whose columns are padded, so that it reads well as plain text too.
class MarkdownTable {
 public:
  struct Column {
    std::string title;
    bool text = false;  // Begins at the left; numbers end at the right.
  };
  explicit MarkdownTable(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void Add(std::vector<std::string> cells);  // REQUIRES: as many as columns.
  bool empty() const { return rows_.empty(); }
  std::string ToString() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// `value` with three significant digits: "0.0123", "45.6", "1234".
std::string Digits(double value);
// "123 us", "4.56 ms", "1.23 s".
std::string Time(double seconds);
// "4.19 MB", in powers of ten.
std::string Megabytes(double bytes);

// The processor's own name, and how many of it this process may use.
std::string ProcessorName();
int ProcessorCount();
// "2026-11-30 18:05 UTC".
std::string Today();

// Writes `json` and a line end to `path`, replacing what is there.
absl::Status WriteJson(const std::string& path, absl::string_view json);

// What is put between two large buffers. Addresses that lie a large power of two apart share banks of memory, and of
// some caches the sets: streams that run beside each other over such buffers are half as fast. That is a matter of
// where buffers lie, not of what is measured here. Larger than a page, and no power of two; a multiple of 256.
inline constexpr int64_t kStaggerBytes = 64 * 1024 + 8 * 1024 + 512;

}  // namespace shale
