#include "engine/tokenize/row_scanner.h"

#include "absl/status/status.h"
#include "kernels/check.h"

namespace shale {
namespace {

bool IsJsonSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

}  // namespace

void RowScanner::Finish(size_t begin, size_t end, Row* row) {
  in_value_ = false;
  *row = {begin, end};
  ++rows_;
  if (list_ == List::kElement) list_ = List::kGoesOn;
}

bool RowScanner::TakeInValue(char c, Row* row) {
  const size_t begin = at_ - begin_;
  ++begin_;
  bool ended = false;
  if (in_string_) {
    in_string_ = escaped_ || c != '"';
    escaped_ = !escaped_ && c == '\\';
  } else if (is_line_) {
    ended = c == '\n';
  } else if (c == '"') {
    in_string_ = true;
  } else if (c == '{' || c == '[') {
    ++depth_;
  } else if (c == '}' || c == ']') {
    if (depth_ == 0) {
      ended = true;  // The list ends behind a number or a word.
    } else if (--depth_ == 0) {
      ++at_;  // The bracket belongs to the value.
      ended = true;
    }
  } else {
    ended = depth_ == 0 && list_ != List::kNone && c == ',';
  }
  if (ended) Finish(begin, at_, row);
  return ended;
}

absl::Status RowScanner::TakeOutside(char c, Row* row) {
  if (!begun_ && c == '[') {
    begun_ = true;
    list_ = List::kBegins;
    return absl::OkStatus();
  }
  begun_ = true;
  *row = {at_, at_};
  if (list_ == List::kEnded) {
    return absl::InvalidArgumentError("more follows the list of rows, which the file begins with");
  }
  if (list_ == List::kGoesOn && c == ',') {
    list_ = List::kElement;
    return absl::OkStatus();
  }
  if ((list_ == List::kGoesOn || list_ == List::kBegins) && c == ']') {
    list_ = List::kEnded;
    return absl::OkStatus();
  }
  if (list_ == List::kGoesOn) return absl::InvalidArgumentError("a comma or the end of the list must follow a row");
  if (list_ == List::kElement && (c == ',' || c == ']')) {
    return absl::InvalidArgumentError("a row must follow a comma");
  }
  if (list_ == List::kBegins) list_ = List::kElement;
  in_value_ = true;
  is_line_ = list_ == List::kNone && c != '{';
  begin_ = 1;
  depth_ = c == '{' || c == '[' ? 1 : 0;
  in_string_ = !is_line_ && c == '"';
  escaped_ = false;
  return absl::OkStatus();
}

absl::StatusOr<RowScanner::Found> RowScanner::End(Row* row) {
  if (in_value_ && is_line_) {
    Finish(at_ - begin_, at_, row);
    return Found::kRow;
  }
  *row = {in_value_ ? at_ - begin_ : at_, at_};
  if (in_value_) return absl::InvalidArgumentError("the file ends inside of the row that begins here");
  if (list_ != List::kNone && list_ != List::kEnded) {
    return absl::InvalidArgumentError("the file ends inside of its list of rows");
  }
  return Found::kEnd;
}

absl::StatusOr<RowScanner::Found> RowScanner::Next(absl::string_view buffer, bool at_end, Row* row) {
  for (; at_ < buffer.size(); ++at_) {
    const char c = buffer[at_];
    if (in_value_) {
      if (TakeInValue(c, row)) return Found::kRow;
    } else if (!IsJsonSpace(c)) {
      SHALE_RETURN_IF_ERROR(TakeOutside(c, row));
    }
  }
  return at_end ? End(row) : Found::kMore;
}

}  // namespace shale
