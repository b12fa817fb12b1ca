// PreparedText: text as tokens, in a cache for later runs with the same text and tokenizer. The cache names text by
// what decides the tokens (TextKey). TextProgress (engine/api/text_progress.h) reports on text that becomes tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/api/text_progress.h"
#include "engine/files/data/data_enums.h"
#include "engine/files/data/data_files.h"
#include "engine/files/data/documents.h"
#include "engine/files/data/token_source.h"
#include "engine/files/io/checksums.h"
#include "engine/files/io/file.h"

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

// Two checksums of the same bytes, by different polynomials.
class TextChecksum {
 public:
  void Add(absl::string_view bytes);
  void AddNumber(int64_t number);
  // Adds the bytes of a file. Returns the checksum of these alone (Crc64).
  absl::StatusOr<uint64_t> AddFile(const InputFile& file);

  uint64_t crc64() const { return crc64_; }
  uint32_t crc32c() const { return crc32c_; }

 private:
  uint64_t crc64_ = 0;
  uint32_t crc32c_ = 0;
};

// A file as it was when its checksum was taken.
struct SeenFile {
  std::string path;
  FileContent content;
};

// Returns a checksum of the version of the cache, of the fields of `text`, of the files of the tokenizer and of the
// given files, as hexadecimal digits. Appends the latter to `*seen`.
absl::StatusOr<std::string> TextKey(const TextData& text, int version, const std::vector<DataFile>& files,
                                    std::vector<SeenFile>* seen);

}  // namespace shale
