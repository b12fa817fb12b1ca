// DocumentReader: reads the documents of text files and JSON Lines, in parts that can be tokenized independently.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/io/file.h"
#include "engine/text/utf8.h"

namespace shale {

// A document, or a piece of a long one.
struct DocumentPiece {
  std::string text;  // Well-formed UTF-8.
  bool begins = true, ends = true;
};

// A text file is one document. Each line of a file named *.jsonl is one, an object whose "text" is the document; lines
// of white space are skipped. Reads the files of a folder in byte order of their names, without hidden and empty ones.
// Used by one thread. Memory does not grow with the data, but for documents that cannot be cut.
class DocumentReader {
 public:
  struct Options {
    // Whether documents may be cut at lines (Tokenizer::by_line).
    bool cut_lines = false;
    int64_t piece_bytes = 1 << 20;  // Pieces are cut when they are longer.
    int64_t largest_piece_bytes = int64_t{1} << 30;
  };

  static absl::StatusOr<DocumentReader> Open(const std::string& path, const Options& options);

  int64_t total_bytes() const { return total_bytes_; }
  int64_t files() const { return static_cast<int64_t>(paths_.size()); }

  // Appends pieces of about piece_bytes bytes in all. Appends none at the end of the data. Returns InvalidArgument with
  // file and line for what is not UTF-8, not JSON or without a "text", and ResourceExhausted for a document or a line
  // that is too large.
  absl::Status Read(std::vector<DocumentPiece>* pieces);

 private:
  explicit DocumentReader(const Options& options) : options_(options) {}

  // Opens the next file, or sets file_ to none after the last one.
  absl::Status NextFile();
  // Appends the next bytes of the file to buffer_, and checks them.
  absl::Status Fill();
  absl::Status TakeText(std::vector<DocumentPiece>* pieces);
  absl::Status TakeLines(std::vector<DocumentPiece>* pieces);
  absl::Status TakeLine(const std::string& line, std::vector<DocumentPiece>* pieces) const;
  absl::Status TooLarge(absl::string_view what) const;
  bool at_end() const { return offset_ == file_->size(); }

  Options options_;
  std::vector<std::string> paths_;
  int64_t total_bytes_ = 0;
  size_t next_path_ = 0;
  std::optional<InputFile> file_;
  bool json_lines_ = false;
  int64_t offset_ = 0;       // Bytes of file_ read.
  std::string buffer_;       // Read and not yet given out.
  int64_t line_ = 1;         // Number of the line at which buffer_ begins.
  bool begins_ = true;       // buffer_ begins a document.
  Utf8Validator validator_;  // Of file_.
};

}  // namespace shale
