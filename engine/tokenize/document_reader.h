// DocumentReader: reads the documents of text files and JSON Lines, in pieces that can be tokenized independently.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/io/input_stream.h"
#include "engine/text/utf8.h"

namespace shale {

// A document, a piece of a long document, or a line that holds a document as JSON.
struct DocumentPiece {
  // Well-formed UTF-8. If `is_row`, the line as it stands in the file, which may be anything.
  std::string text;
  bool begins = true, ends = true;          // Whether the document begins and ends with this piece.
  bool is_row = false;                      // Whether this is a line of JSON Lines (engine/tokenize/text_row.h).
  std::shared_ptr<const std::string> path;  // The file that it stands in.
  int64_t line = 1;                         // The line at which the piece begins.
};

struct DocumentFiles {
  std::vector<std::string> paths;    // In order. At least one.
  std::vector<std::string> skipped;  // Entries of a folder that are left out: "art.dat (binary)".
};

// Returns the files at `path`: the file itself; the files of a folder, in byte order of their names; or, for a file
// named *.list, the files and folders that its lines name, relative to its folder. Leaves out empty files. From a
// folder, also leaves out hidden files, folders, files that it met before under another name, and binary files
// (RecognizeFormat) that are not compressed. Returns InvalidArgument if none is left.
absl::StatusOr<DocumentFiles> ListDocumentFiles(const std::string& path);

// A text file is one document. Each line of a file named *.jsonl is one document, unless it is white space.
// Decompresses files named *.gz and *.zst. Memory does not grow with the data, only with the longest document that
// cannot be cut. Used by one thread.
class DocumentReader {
 public:
  struct Options {
    // Whether documents may be cut at lines (Tokenizer::by_line).
    bool cut_lines = false;
    // Whether every file is JSON Lines, whatever its name is.
    bool all_rows = false;
    int64_t piece_bytes = 1 << 18;                   // Longer documents are cut if they may be.
    int64_t largest_piece_bytes = int64_t{1} << 30;  // Longer lines, and documents that may not be cut, are refused.
  };

  // Returns the errors of ListDocumentFiles.
  static absl::StatusOr<DocumentReader> Open(const std::string& path, const Options& options);

  // Returns the size of all files, as they are on the disk.
  int64_t total_bytes() const { return total_bytes_; }
  // Returns DocumentFiles::skipped.
  const std::vector<std::string>& skipped() const { return files_.skipped; }
  // Returns how many of these bytes were read.
  int64_t bytes_read() const { return bytes_before_ + (stream_ ? stream_->bytes_read() : 0); }

  // Appends pieces, about piece_bytes bytes in all. Appends none at the end of the data. Returns InvalidArgument with
  // file and line for text that is not UTF-8, ResourceExhausted for a document or a line that is too large, and
  // DataLoss for a file that is damaged or changed while it was read.
  absl::Status Read(std::vector<DocumentPiece>* pieces);

 private:
  explicit DocumentReader(const Options& options) : options_(options) {}

  // Opens the next file, or sets stream_ to none after the last one.
  absl::Status NextFile();
  // Appends the next bytes of the file to buffer_.
  absl::Status Fill();
  // Checks that the bytes of buffer_ from `before` on are UTF-8.
  absl::Status CheckText(size_t before);
  absl::Status TakeText(std::vector<DocumentPiece>* pieces);
  absl::Status TakeLines(std::vector<DocumentPiece>* pieces);
  absl::Status TooLarge(absl::string_view what) const;

  Options options_;
  DocumentFiles files_;
  int64_t total_bytes_ = 0;
  int64_t bytes_before_ = 0;  // Bytes of the files before stream_.
  size_t next_path_ = 0;
  std::optional<InputStream> stream_;
  std::shared_ptr<const std::string> path_;  // Of stream_.
  bool rows_ = false;                        // stream_ is JSON Lines.
  int64_t offset_ = 0;                       // Bytes read from stream_.
  std::string buffer_;                       // Read and not yet given out.
  int64_t line_ = 1;                         // Number of the line at which buffer_ begins.
  bool begins_ = true;                       // buffer_ begins a document.
  Utf8Validator validator_;                  // Of stream_.
};

}  // namespace shale
