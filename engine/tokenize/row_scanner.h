// RowScanner: finds the rows in JSON that is not one object in each line: a list of objects, or objects over several
// lines.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

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

}  // namespace shale
