// Recognizes what a file holds, by its first bytes and its name, and finds the split that it belongs to, by its name,
// as files on the Hugging Face hub are named.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/files/data/data_format.h"
#include "engine/files/io/file.h"

namespace shale {

enum class ContentKind {
  kText,    // Text without a form that is known here.
  kRows,    // JSON: objects, one after another or in a list. Each is a row of data.
  kTokens,  // A token file.
  kUnread,  // Data in a form that is not read, or text in an encoding that is not.
  kBinary,  // Something else, which is no text.
};

struct Content {
  ContentKind kind = ContentKind::kText;
  // What it is, for messages: "a Parquet file", "rows of JSON", "text".
  std::string name;
  std::string advice;                       // If kUnread: how to convert it, or "".
  const DataFormatEntry* format = nullptr;  // If kTokens.
  bool packed = false;                      // An InputStream unpacks it. What is said above is of what it unpacks.
  bool is_text = false;                     // It can be read as text: kText, kRows, and tables of text (CSV).
};

// Recognizes a file. Reads its first bytes, unpacked. A file that is named as rows of JSON (*.jsonl, *.ndjson or
// *.json, also packed) holds rows whatever its first bytes are. Returns the errors of InputStream::Append.
absl::StatusOr<Content> RecognizeContent(const InputFile& file);

// Returns whether a name says that each line of the file is a row: *.jsonl or *.ndjson, also packed.
bool IsNamedJsonLines(absl::string_view path);

// Returns an error: `path` is `content`, which is not read, and how to convert it. REQUIRES: content.kind is kUnread.
absl::Status RefuseContent(const std::string& path, const Content& content);

// Returns the error for a file whose `byte` at `offset`, in line `line`, is not UTF-8: what the file is, if its first
// bytes tell, or how to convert its text.
absl::Status NotUtf8(const InputFile& file, uint8_t byte, int64_t offset, int64_t line);

enum class SplitName { kNone, kTrain, kValidation, kTest, kSeveral };

// Returns the split that the folders and the file of a relative path name: "data/train-00000-of-00002.jsonl",
// "test/a.txt", "my.dev.jsonl". A split is named by a whole word between characters that are no letters, in any case:
// train, training; validation, valid, val, dev; test, testing, eval, evaluation. These are the words of
// datasets.load_dataset. Returns kSeveral for train and another, and kTest for validation and test.
SplitName SplitNameOf(absl::string_view path);

// Returns "train", "validation" or "test". REQUIRES: it is one of these.
absl::string_view ToString(SplitName split);

}  // namespace shale
