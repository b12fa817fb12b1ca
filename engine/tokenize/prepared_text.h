// PreparedText: text as tokens, in a cache that later runs with the same text and tokenizer share.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/data/data_enums.h"
#include "engine/data/token_source.h"
#include "engine/tokenize/text_progress.h"

namespace shale {

// What becomes tokens, and how.
struct TextData {
  std::string path;       // ListDocumentFiles.
  bool all_rows = false;  // Every file is JSON Lines, whatever its name is.
  std::string tokenizer;  // A folder with tokenizer.json.
  LossOn loss_on = LossOn::kCompletions;
  BadLines bad_lines = BadLines::kRefuse;
};

struct PreparedText {
  TokenSource tokens;
  TextReport report;
};

struct PrepareOptions {
  std::string cache;  // The folder of the cache. Is made if it is missing.
  int threads = 1;
  TextProgress progress;
};

// Returns whether data are text for a tokenizer, and not token files: by `format`, or else by the name and the content
// of the first file.
absl::StatusOr<bool> IsText(const std::string& path, DataFormat format);

// Returns the tokens of text. Each document ends with the `eos_token` of tokenizer_config.json, if the folder has that,
// and the tokenizer does not put it there itself. Looks for the tokens in the cache, and otherwise makes them there.
// The name of their folder is a checksum of what decides them: the bytes of all files, tokenizer.json, and the choices
// of `text`. The folder appears complete or not at all. A second process that wants the same tokens waits for the
// first.
//
// Reads all text each time, for its checksum, and all tokens, to check theirs; memory does not grow with them. Returns
// the errors of TokenizeDocuments, and DataLoss for files that changed meanwhile, or for a cache that is damaged.
absl::StatusOr<PreparedText> PrepareText(const TextData& text, const PrepareOptions& options);

}  // namespace shale
