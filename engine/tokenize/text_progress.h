// What a program hears of text that becomes tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/data/documents_report.h"

namespace shale {

struct TokenizeTotals {
  int64_t documents = 0;
  int64_t bytes = 0;  // Of text.
  int64_t tokens = 0;
  int64_t counted = 0;        // Tokens that count in the loss.
  int64_t skipped = 0;        // Bad lines (BadLines::kSkip).
  std::string first_skipped;  // What was wrong with the first of them.
};

// Text that has become tokens.
struct TextReport {
  std::string path;    // Of the text.
  std::string folder;  // That keeps the tokens.
  bool made = false;   // The tokens were made now. Otherwise they were found.
  TokenizeTotals totals;
  std::vector<std::string> skipped_files;  // Of a folder, with the reasons: "art.dat (binary)".
};

// All are called by the thread that asked for the data, and may be null.
struct TextProgress {
  // Is called while tokens are made, with the bytes of the files that were read so far, and with all.
  std::function<void(int64_t bytes_read, int64_t total_bytes)> reading;
  // Is called when the tokens are there.
  std::function<void(const TextReport& report)> ready;
  // Is called when documents of `path` are packed or padded (data.packing).
  std::function<void(const std::string& path, const DocumentsReport& report)> packed;
};

}  // namespace shale
