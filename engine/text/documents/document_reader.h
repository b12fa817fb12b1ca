// DocumentReader: reads the documents of text files and of rows of JSON, in pieces that can be tokenized independently.
// RowScanner finds the rows in JSON that is not one object in each line: a list of objects, or objects over several
// lines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/files/data/data_enums.h"
#include "engine/files/data/data_files.h"
#include "engine/files/io/input_stream.h"
#include "engine/strings/utf8.h"

namespace shale {

// Sees the bytes of a file in a buffer that its user fills at the end and shortens at the front. Finds where values
// begin and end by brackets and quotes, and leaves it to the reader of a row to check what is between. A line outside
// of all values is a row, too, so that its error names it. Used by one thread.
class RowScanner {
 public:
  enum class Found { kRow, kMore, kEnd };
  struct Row {
    size_t begin = 0, end = 0;  // In the buffer.
  };

  // Searches `buffer` from where the last call ended. Returns kRow and sets `*row`, or kMore if the buffer must have
  // more bytes, or kEnd behind the last row if `at_end` says that no bytes follow. Returns InvalidArgument for a file
  // that ends inside of a value or of its list, or goes on behind its list, and sets `row->begin` to the place.
  absl::StatusOr<Found> Next(absl::string_view buffer, bool at_end, Row* row);
  // Says that `bytes` bytes were removed from the front of the buffer. REQUIRES: they lie before the end of the last
  // row.
  void Removed(size_t bytes) { at_ -= bytes; }

  // Returns how many rows were found, and whether they are those of a list.
  int64_t rows() const { return rows_; }
  bool in_list() const { return list_ != List::kNone; }

 private:
  enum class List { kNone, kBegins, kGoesOn, kElement, kEnded };

  // Takes the byte at at_. Inside of a value returns whether the value has ended, and then sets `*row`. Outside of one
  // returns an error if no value may begin with the byte.
  bool TakeInValue(char c, Row* row);
  absl::Status TakeOutside(char c, Row* row);
  absl::StatusOr<Found> End(Row* row);
  // Ends the value.
  void Finish(size_t begin, size_t end, Row* row);

  List list_ = List::kNone;
  bool begun_ = false;  // A byte that is no white space was seen.
  size_t at_ = 0;       // The next byte to see.
  bool in_value_ = false;
  bool is_line_ = false;  // The value is a line that begins with no brace.
  size_t begin_ = 0;      // Of the value, as an offset before at_.
  int depth_ = 0;         // Open brackets of the value.
  bool in_string_ = false, escaped_ = false;
  int64_t rows_ = 0;
};

// A document, a piece of a long document, or a row that holds a document as JSON.
struct DocumentPiece {
  // Well-formed UTF-8. If `is_row`, the row as it stands in the file, which may be anything.
  std::string text;
  bool begins = true, ends = true;          // Whether the document begins and ends with this piece.
  bool is_row = false;                      // Whether this is a row of JSON (engine/text/documents/text_row.h).
  std::shared_ptr<const std::string> path;  // The file that it stands in.
  int64_t line = 1;                         // The line at which the piece begins.
  int64_t number = 0;                       // If it is an element of a list of rows: 1 for the first one; else 0.
  bool guessed = false;                     // It is a row because of what the file begins with, not of its name.

  // Returns where it stands, for messages: "a.jsonl:3", "a.json:1: row 17".
  std::string Place() const;
};

// A text file is one document. Of a file with rows of JSON, each row is a document: each line of a file named *.jsonl
// or *.ndjson, unless it is white space, and in other files each object, or each element of the list that the file is.
// ListDataFiles says which files these are. Unpacks gzip and zstd. Memory does not grow with the data, only with the
// longest document that cannot be cut. Used by one thread.
class DocumentReader {
 public:
  struct Options {
    // Whether documents may be cut at lines (Tokenizer::by_line).
    bool cut_lines = false;
    // Which files there are. `lists` is always set.
    DataFilesOptions files;
    BadBytes bad_bytes = BadBytes::kFail;
    int64_t piece_bytes = 1 << 18;                   // Longer documents are cut if they may be.
    int64_t largest_piece_bytes = int64_t{1} << 30;  // Longer lines, and documents that may not be cut, are refused.
  };

  // Returns the errors of ListDataFiles.
  static absl::StatusOr<DocumentReader> Open(const std::string& path, const Options& options);

  // Returns the size of all files, as they are on the disk.
  int64_t total_bytes() const { return total_bytes_; }
  // Returns DataFiles::skipped.
  const std::vector<std::string>& skipped() const { return files_.skipped; }
  // Returns how many times U+FFFD took the place of bytes so far (BadBytes::kReplace), and where it first did.
  int64_t replaced() const { return replaced_; }
  const std::string& first_replaced() const { return first_replaced_; }
  // Returns how many of these bytes were read.
  int64_t bytes_read() const { return bytes_before_ + (stream_ ? stream_->bytes_read() : 0); }

  // Appends pieces, about piece_bytes bytes in all. Appends none at the end of the data. Returns InvalidArgument with
  // file and line for text that is not UTF-8, if that is not replaced, and for a list of rows that is none,
  // ResourceExhausted for a document or a line that is too large, and DataLoss for a file that is damaged or changed
  // while it was read.
  absl::Status Read(std::vector<DocumentPiece>* pieces);

 private:
  explicit DocumentReader(const Options& options) : options_(options) {}

  // Opens the next file, or sets stream_ to none after the last one.
  absl::Status NextFile();
  // Appends the next bytes of the file to buffer_.
  absl::Status Fill();
  // Checks that the bytes of buffer_ from `before` on are UTF-8.
  absl::Status CheckText(size_t before);
  // Replaces what is not UTF-8 in `*text`, whose first byte is at `offset` of the file. At the end of the file also
  // replaces an incomplete character; else moves it to unfinished_.
  void Replace(int64_t offset, bool at_end, std::string* text);
  void AddRow(absl::string_view text, int64_t line, int64_t number, std::vector<DocumentPiece>* pieces);
  absl::Status TakeText(std::vector<DocumentPiece>* pieces);
  absl::Status TakeLines(std::vector<DocumentPiece>* pieces);
  absl::Status TakeValues(std::vector<DocumentPiece>* pieces);
  absl::Status TooLarge(absl::string_view what) const;

  Options options_;
  DataFiles files_;
  int64_t total_bytes_ = 0;
  int64_t bytes_before_ = 0;  // Bytes of the files before stream_.
  size_t next_path_ = 0;
  std::optional<InputStream> stream_;
  std::shared_ptr<const std::string> path_;  // Of stream_.
  enum class Form { kText, kLines, kValues };
  Form form_ = Form::kText;  // Of stream_.
  bool guessed_ = false;     // DocumentPiece::guessed.
  RowScanner scanner_;       // Of stream_, if form_ is kValues.
  std::string unfinished_;   // The beginning of a character, if bytes are replaced.
  int64_t replaced_ = 0;
  std::string first_replaced_;
  int64_t offset_ = 0;       // Bytes read from stream_.
  std::string buffer_;       // Read and not yet given out.
  int64_t line_ = 1;         // Number of the line at which buffer_ begins.
  bool begins_ = true;       // buffer_ begins a document.
  Utf8Validator validator_;  // Of stream_.
};

}  // namespace shale
