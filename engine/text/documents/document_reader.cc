#include "engine/text/documents/document_reader.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/files/data/content.h"
#include "engine/files/io/file.h"
#include "engine/strings/printing.h"
#include "engine/text/tokenizer/character.h"
#include "kernels/check.h"

namespace shale {
namespace {

bool IsJsonSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

constexpr absl::string_view kReplacementCharacter = "\xEF\xBF\xBD", kUtf8Mark = "\xEF\xBB\xBF";

bool IsSpace(uint32_t code) { return (CharacterClasses::Get().Of(code) & kSpace) != 0; }

// Returns the last place where `text` may be cut: behind a line end between two characters that are not white space.
// Returns 0 if there is none. `text` is well-formed but for its last character.
size_t LastCut(absl::string_view text) {
  for (size_t at = text.rfind('\n'); at != absl::string_view::npos && at > 0; at = text.rfind('\n', at - 1)) {
    if (at + 4 >= text.size()) continue;  // The next character may be incomplete.
    const char* next = text.data() + at + 1;
    if (!IsSpace(LastCharacter(text.substr(0, at))) && !IsSpace(NextCharacter(&next))) return at + 1;
  }
  return 0;
}

// Returns how many bytes at the front of `text`, which begins with bytes that are not UTF-8, are the beginning of one
// character. At least 1.
size_t BrokenCharacter(absl::string_view text) {
  size_t size = 1;
  while (size < std::min<size_t>(text.size(), 4) && Utf8Validator().Feed(text.substr(0, size + 1))) ++size;
  return size;
}

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

std::string DocumentPiece::Place() const {
  return absl::StrCat(*path, ":", line, number > 0 ? absl::StrCat(": row ", number) : "");
}

absl::StatusOr<DocumentReader> DocumentReader::Open(const std::string& path, const Options& options) {
  DocumentReader reader(options);
  reader.options_.files.lists = true;
  SHALE_ASSIGN_OR_RETURN(reader.files_, ListDataFiles(path, reader.options_.files));
  for (const DataFile& inside : reader.files_.files) {
    SHALE_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(inside.path));
    reader.total_bytes_ += file.size();
  }
  return reader;
}

absl::Status DocumentReader::NextFile() {
  bytes_before_ = bytes_read();
  stream_.reset();
  if (next_path_ == files_.files.size()) return absl::OkStatus();
  const DataFile& file = files_.files[next_path_++];
  path_ = std::make_shared<const std::string>(file.path);
  SHALE_ASSIGN_OR_RETURN(InputStream opened, InputStream::Open(*path_));
  stream_.emplace(std::move(opened));
  offset_ = 0;
  line_ = 1;
  begins_ = true;
  validator_ = Utf8Validator();
  scanner_ = RowScanner();
  unfinished_.clear();
  form_ = Form::kText;
  if (!file.rows) return absl::OkStatus();
  const bool lines = options_.files.format == DataFormat::kJsonLines || IsNamedJsonLines(*path_);
  guessed_ = !lines && !absl::EndsWithIgnoreCase(WithoutPacking(*path_), ".json");
  form_ = Form::kLines;
  while (std::ssize(buffer_) < kHeadBytes && !stream_->at_end()) SHALE_RETURN_IF_ERROR(Fill());
  if (absl::StartsWith(buffer_, kUtf8Mark)) buffer_.erase(0, kUtf8Mark.size());
  // Lines that are lists are bad lines, each of which may be skipped, unless the file is one list of objects.
  const size_t begin = buffer_.find_first_not_of(" \t\r\n");
  const bool is_list = begin != std::string::npos && buffer_[begin] == '[';
  const size_t inside = is_list ? buffer_.find_first_not_of(" \t\r\n", begin + 1) : std::string::npos;
  if (!lines || (inside != std::string::npos && buffer_[inside] == '{')) form_ = Form::kValues;
  return absl::OkStatus();
}

absl::Status DocumentReader::Fill() {
  const size_t before = buffer_.size();
  SHALE_RETURN_IF_ERROR(stream_->Append(options_.piece_bytes, &buffer_));
  const int64_t offset = offset_;
  offset_ += static_cast<int64_t>(buffer_.size() - before);
  if (form_ != Form::kText) return absl::OkStatus();
  if (options_.bad_bytes == BadBytes::kFail) return CheckText(before);
  std::string text = absl::StrCat(unfinished_, absl::string_view(buffer_).substr(before));
  const int64_t begin = offset - std::ssize(unfinished_);
  unfinished_.clear();
  Replace(begin, stream_->at_end(), &text);
  buffer_.resize(before);
  buffer_ += text;
  return absl::OkStatus();
}

void DocumentReader::Replace(int64_t offset, bool at_end, std::string* text) {
  std::string good;
  for (absl::string_view rest = *text; !rest.empty();) {
    Utf8Validator validator;
    const bool well_formed = validator.Feed(rest);
    if (well_formed && validator.Finish()) {
      if (good.empty()) return;
      absl::StrAppend(&good, rest);
      break;
    }
    const int64_t at = validator.error_offset();
    absl::StrAppend(&good, rest.substr(0, at));
    rest.remove_prefix(at);
    if (well_formed && !at_end) {
      unfinished_ = std::string(rest);
      break;
    }
    if (++replaced_ == 1) {
      first_replaced_ = absl::StrCat(*path_, ": the byte at offset ", offset + std::ssize(*text) - std::ssize(rest));
    }
    absl::StrAppend(&good, kReplacementCharacter);
    rest.remove_prefix(BrokenCharacter(rest));
  }
  *text = std::move(good);
}

absl::Status DocumentReader::CheckText(size_t before) {
  const bool well_formed =
      validator_.Feed(absl::string_view(buffer_).substr(before)) && (!stream_->at_end() || validator_.Finish());
  if (well_formed) return absl::OkStatus();
  const int64_t at = validator_.error_offset() - (offset_ - std::ssize(buffer_));
  SHALE_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(*path_));
  return NotUtf8(file, static_cast<uint8_t>(buffer_[at]), validator_.error_offset(),
                 line_ + std::count(buffer_.begin(), buffer_.begin() + at, '\n'));
}

absl::Status DocumentReader::TooLarge(absl::string_view what) const {
  return absl::ResourceExhaustedError(
      absl::StrCat(*path_, ":", line_, ": ", what, " has more than ", FormatBytes(options_.largest_piece_bytes)));
}

absl::Status DocumentReader::TakeText(std::vector<DocumentPiece>* pieces) {
  while (true) {
    const bool end = stream_->at_end();
    size_t cut = end ? buffer_.size() : 0;
    if (!end && options_.cut_lines && static_cast<int64_t>(buffer_.size()) >= options_.piece_bytes) {
      // The bytes before that were searched when fewer had been read.
      const size_t from = buffer_.size() - std::min<size_t>(buffer_.size(), 2 * options_.piece_bytes);
      cut = LastCut(absl::string_view(buffer_).substr(from));
      if (cut > 0) cut += from;
    }
    if (end || cut > 0) {
      pieces->push_back({.text = buffer_.substr(0, cut), .begins = begins_, .ends = end, .path = path_, .line = line_});
      line_ += std::count(buffer_.begin(), buffer_.begin() + cut, '\n');
      buffer_.erase(0, cut);
      begins_ = false;
      return end ? NextFile() : absl::OkStatus();
    }
    if (static_cast<int64_t>(buffer_.size()) > options_.largest_piece_bytes) {
      return TooLarge("a document that this tokenizer cannot take in pieces");
    }
    SHALE_RETURN_IF_ERROR(Fill());
  }
}

void DocumentReader::AddRow(absl::string_view text, int64_t line, int64_t number, std::vector<DocumentPiece>* pieces) {
  pieces->push_back(
      {.text = std::string(text), .is_row = true, .path = path_, .line = line, .number = number, .guessed = guessed_});
  if (options_.bad_bytes == BadBytes::kReplace && !IsUtf8(text)) {
    const int64_t offset = offset_ - std::ssize(buffer_) + (text.data() - buffer_.data());
    Replace(offset, /*at_end=*/true, &pieces->back().text);
  }
}

absl::Status DocumentReader::TakeLines(std::vector<DocumentPiece>* pieces) {
  // The first bytes were read to tell the form.
  const size_t searched = begins_ ? 0 : buffer_.size();
  begins_ = false;
  if (searched > 0 || buffer_.empty()) SHALE_RETURN_IF_ERROR(Fill());
  size_t begin = 0;
  while (begin < buffer_.size()) {
    size_t end = buffer_.find('\n', std::max(begin, searched));
    if (end == std::string::npos) {
      if (!stream_->at_end()) break;
      end = buffer_.size();
    }
    const absl::string_view line = absl::string_view(buffer_).substr(begin, end - begin);
    if (std::ssize(line) > options_.largest_piece_bytes) return TooLarge("a line");
    if (line.find_first_not_of(" \t\r") != absl::string_view::npos) {
      AddRow(line, line_, /*number=*/0, pieces);
    }
    ++line_;
    begin = end + 1;
  }
  buffer_.erase(0, begin);
  if (static_cast<int64_t>(buffer_.size()) > options_.largest_piece_bytes) return TooLarge("a line");
  return stream_->at_end() ? NextFile() : absl::OkStatus();
}

absl::Status DocumentReader::TakeValues(std::vector<DocumentPiece>* pieces) {
  size_t taken = 0;    // Bytes of buffer_ that are part of rows.
  size_t counted = 0;  // Bytes of buffer_ whose line ends line_ has counted.
  const auto count_to = [&](size_t end) {
    line_ += std::count(buffer_.begin() + counted, buffer_.begin() + end, '\n');
    counted = end;
  };
  RowScanner::Row row;
  while (true) {
    const absl::StatusOr<RowScanner::Found> found = scanner_.Next(buffer_, stream_->at_end(), &row);
    if (!found.ok() || *found == RowScanner::Found::kRow) count_to(row.begin);
    if (!found.ok()) {
      return absl::Status(found.status().code(), absl::StrCat(*path_, ":", line_, ": ", found.status().message()));
    }
    if (*found == RowScanner::Found::kEnd) {
      buffer_.clear();
      return NextFile();
    }
    if (*found == RowScanner::Found::kMore) break;
    const absl::string_view text = absl::string_view(buffer_).substr(row.begin, row.end - row.begin);
    AddRow(text, line_, scanner_.in_list() ? scanner_.rows() : 0, pieces);
    taken = row.end;
  }
  count_to(taken);
  buffer_.erase(0, taken);
  scanner_.Removed(taken);
  if (static_cast<int64_t>(buffer_.size()) > options_.largest_piece_bytes) return TooLarge("a row");
  return Fill();
}

absl::Status DocumentReader::Read(std::vector<DocumentPiece>* pieces) {
  const size_t before = pieces->size();
  if (!stream_ && next_path_ == 0) SHALE_RETURN_IF_ERROR(NextFile());
  while (stream_ && pieces->size() == before) {
    switch (form_) {
      case Form::kText: SHALE_RETURN_IF_ERROR(TakeText(pieces)); break;
      case Form::kLines: SHALE_RETURN_IF_ERROR(TakeLines(pieces)); break;
      case Form::kValues: SHALE_RETURN_IF_ERROR(TakeValues(pieces)); break;
    }
  }
  return absl::OkStatus();
}

}  // namespace shale
