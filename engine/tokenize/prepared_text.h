// PreparedText: text as tokens, in a cache for later runs with the same text and tokenizer.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/data/data_enums.h"
#include "engine/data/data_files.h"
#include "engine/data/token_source.h"
#include "engine/tokenize/text_progress.h"

namespace shale {

// The text to tokenize, and how to tokenize it.
struct TextData {
  std::string path;        // A file, a folder or a list (ListDataFiles).
  DataFilesOptions files;  // `lists` is always set.
  std::string tokenizer;   // A folder with tokenizer.json.
  LossOn loss_on = LossOn::kCompletions;
  BadLines bad_lines = BadLines::kRefuse;
  BadBytes bad_bytes = BadBytes::kFail;
  SpelledTokens spelled_tokens = SpelledTokens::kInMessages;
  bool allow_dropped_text = false;  // Whether chat templates may leave out what messages say.
  std::string date;                 // The day that chat templates write as today's, "2026-11-28". Empty: none.
};

struct PreparedText {
  TokenSource tokens;
  TextReport report;
};

struct PrepareOptions {
  std::string cache;  // The folder of the cache. PrepareText makes it if it is missing.
  int threads = 1;
  TextProgress progress;
};

// Returns whether data is text for a tokenizer, rather than token files. The format that is asked for decides, or for
// kByContent what the files are. Returns the errors of ListDataFiles.
absl::StatusOr<bool> IsText(const std::string& path, DataFilesOptions options);

// Returns the tokens of text. Finds them in the cache, or else makes them there. Ends each document with DocumentEnd,
// unless there is none or the tokenizer puts it there itself.
//
// Each folder of the cache holds the tokens of one text. Its name is a checksum of everything that decides the tokens:
// the bytes of all files, the files of the tokenizer, and the other fields of `text`. The folder appears complete or
// not at all. A second process that wants the same tokens waits for the first.
//
// Reads all text each time, for its checksum, and all tokens, to check theirs. Memory does not grow with either.
// Returns the errors of TokenizeDocuments, and DataLoss if a file changed meanwhile or the cache is damaged.
absl::StatusOr<PreparedText> PrepareText(const TextData& text, const PrepareOptions& options);

}  // namespace shale
