#include "tools/bench/support.h"

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/files/io/file.h"
#include "kernels/check.h"

namespace shale {

double Median(std::vector<double> values) {
  SHALE_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double Mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

void MarkdownTable::Add(std::vector<std::string> cells) {
  SHALE_CHECK(cells.size() == columns_.size());
  rows_.push_back(std::move(cells));
}

std::string MarkdownTable::ToString() const {
  std::vector<size_t> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    size_t width = std::max<size_t>(3, columns_[c].title.size());
    for (const auto& row : rows_) width = std::max(width, row[c].size());
    widths.push_back(width);
  }
  std::string text;
  const auto line = [&](const auto& cell) {
    for (size_t c = 0; c < columns_.size(); ++c) {
      const std::string value = cell(c);
      const std::string padding(widths[c] - value.size(), ' ');
      absl::StrAppend(&text, "| ", columns_[c].text ? value + padding : padding + value, " ");
    }
    absl::StrAppend(&text, "|\n");
  };
  line([&](size_t c) { return columns_[c].title; });
  line(
      [&](size_t c) { return columns_[c].text ? std::string(widths[c], '-') : std::string(widths[c] - 1, '-') + ":"; });
  for (const auto& row : rows_) line([&](size_t c) { return row[c]; });
  return text;
}

std::string Digits(double value) {
  const int decimals = value >= 100 ? 0 : value >= 10 ? 1 : value >= 1 ? 2 : value >= 0.1 ? 3 : 4;
  return absl::StrFormat("%.*f", decimals, value);
}

std::string Time(double seconds) {
  if (seconds < 1e-3) return absl::StrCat(Digits(seconds * 1e6), " us");
  if (seconds < 1) return absl::StrCat(Digits(seconds * 1e3), " ms");
  return absl::StrCat(Digits(seconds), " s");
}

std::string Megabytes(double bytes) { return absl::StrCat(Digits(bytes * 1e-6), " MB"); }

std::string ProcessorName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

int ProcessorCount() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) return std::max(1, CPU_COUNT(&allowed));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

std::string Today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M UTC", &utc);
  return text;
}

absl::Status WriteJson(const std::string& path, absl::string_view json) {
  return WriteFileDurably(path, absl::StrCat(json, "\n"));
}

}  // namespace shale
