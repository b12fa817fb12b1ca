// What a program may show while text becomes tokens (TrainerOptions::text_progress).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace shale {

struct DocumentsReport;  // engine/files/data/documents.h

// Counts of text that became tokens.
struct TokenizeTotals {
  int64_t documents = 0;
  int64_t bytes = 0;  // Bytes of text.
  int64_t tokens = 0;
  int64_t counted = 0;         // Tokens that count in the loss.
  int64_t skipped = 0;         // Bad lines that were skipped (BadLines::kSkip).
  std::string first_skipped;   // What is wrong with the first bad line.
  int64_t replaced = 0;        // How often U+FFFD took the place of bytes that are not UTF-8 (BadBytes::kReplace).
  std::string first_replaced;  // Where it first did.
  int64_t dropped = 0;         // Rows of which the chat template leaves out something (allow_dropped_text).
  std::string first_dropped;   // What it leaves out of the first.
  int64_t spelled = 0;         // Rows whose text spells a special token.
  std::string first_spelled;   // The first of them, and its token.
  std::vector<std::string> ignored;  // Members of rows that nothing reads, in order. At most 20.
};

// Says how text became tokens.
struct TextReport {
  std::string path;    // The text.
  std::string folder;  // The folder of the cache that has the tokens.
  bool made = false;   // Whether this call made the tokens, rather than found them in the cache.
  TokenizeTotals totals;
  std::vector<std::string> files;          // The files that were read.
  std::vector<std::string> skipped_files;  // Files of a folder that were left out, with reasons: "art.dat (binary)".
};

// Functions that the thread that asked for the data calls. Each may be null.
struct TextProgress {
  // Called while tokens are made, with the bytes of the files that were read so far, and the bytes of all files.
  std::function<void(int64_t bytes_read, int64_t total_bytes)> reading;
  // Called when the tokens can be read.
  std::function<void(const TextReport& report)> ready;
  // Called when the documents of `path` have been packed or padded (data.packing).
  std::function<void(const std::string& path, const DocumentsReport& report)> packed;
};

}  // namespace shale
