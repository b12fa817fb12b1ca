#include "engine/tokenize/row_scanner.h"

#include "absl/status/status.h"

namespace shale {
namespace {

bool IsJsonSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

}  // namespace

absl::StatusOr<RowScanner::Found> RowScanner::Next(absl::string_view buffer, bool at_end, Row* row) {
  const auto found = [&](size_t begin, size_t end) {
    in_value_ = false;
    *row = {begin, end};
    ++rows_;
    if (list_ == List::kElement) list_ = List::kGoesOn;
    return Found::kRow;
  };
  for (; at_ < buffer.size(); ++at_) {
    const char c = buffer[at_];
    if (in_value_) {
      const size_t begin = at_ - begin_;
      ++begin_;
      if (in_string_) {
        in_string_ = escaped_ || c != '"';
        escaped_ = !escaped_ && c == '\\';
      } else if (is_line_) {
        if (c == '\n') return found(begin, at_);
      } else if (c == '"') {
        in_string_ = true;
      } else if (c == '{' || c == '[') {
        ++depth_;
      } else if (c == '}' || c == ']') {
        if (depth_ == 0) return found(begin, at_);  // The list ends behind a number or a word.
        if (--depth_ == 0) return found(begin, ++at_);
      } else if (depth_ == 0 && list_ != List::kNone && c == ',') {
        return found(begin, at_);
      }
      continue;
    }
    if (IsJsonSpace(c)) continue;
    if (!begun_ && c == '[') {
      begun_ = true;
      list_ = List::kBegins;
      continue;
    }
    begun_ = true;
    *row = {at_, at_};
    if (list_ == List::kEnded)
      return absl::InvalidArgumentError("more follows the list of rows, which the file begins with");
    if (list_ == List::kGoesOn && c == ',') {
      list_ = List::kElement;
      continue;
    }
    if ((list_ == List::kGoesOn || list_ == List::kBegins) && c == ']') {
      list_ = List::kEnded;
      continue;
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
  }
  if (!at_end) return Found::kMore;
  if (in_value_ && is_line_) return found(at_ - begin_, at_);
  *row = {in_value_ ? at_ - begin_ : at_, at_};
  if (in_value_) return absl::InvalidArgumentError("the file ends inside of the row that begins here");
  if (list_ != List::kNone && list_ != List::kEnded) {
    return absl::InvalidArgumentError("the file ends inside of its list of rows");
  }
  return Found::kEnd;
}

}  // namespace shale
