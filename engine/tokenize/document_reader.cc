#include "engine/tokenize/document_reader.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/hugging_face/strict_json.h"
#include "engine/text/numbers.h"
#include "engine/tokenize/character.h"
#include "kernels/check.h"

namespace shale {
namespace {

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

}  // namespace

absl::StatusOr<DocumentReader> DocumentReader::Open(const std::string& path, const Options& options) {
  DocumentReader reader(options);
  std::vector<std::string> paths = {path};
  struct stat found;
  if (stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode)) {
    SHALE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(path));
    paths.clear();
    for (const std::string& name : names) {
      const std::string inside = JoinPath(path, name);
      if (name[0] != '.' && stat(inside.c_str(), &found) == 0 && S_ISREG(found.st_mode)) paths.push_back(inside);
    }
  }
  for (const std::string& inside : paths) {
    SHALE_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(inside));
    if (file.size() == 0) continue;
    reader.paths_.push_back(inside);
    reader.total_bytes_ += file.size();
  }
  if (reader.paths_.empty()) return absl::InvalidArgumentError(absl::StrCat(path, " has no data"));
  return reader;
}

absl::Status DocumentReader::NextFile() {
  file_.reset();
  if (next_path_ == paths_.size()) return absl::OkStatus();
  SHALE_ASSIGN_OR_RETURN(InputFile opened, InputFile::Open(paths_[next_path_++]));
  file_.emplace(std::move(opened));
  file_->ReadsInOrder();
  json_lines_ = absl::EndsWith(file_->path(), ".jsonl");
  offset_ = 0;
  line_ = 1;
  begins_ = true;
  validator_ = Utf8Validator();
  return absl::OkStatus();
}

absl::Status DocumentReader::Fill() {
  const size_t before = buffer_.size();
  const int64_t bytes = std::min(file_->size() - offset_, options_.piece_bytes);
  buffer_.resize(before + bytes);
  SHALE_RETURN_IF_ERROR(file_->ReadAt(offset_, buffer_.data() + before, bytes));
  const bool well_formed = validator_.Feed(absl::string_view(buffer_).substr(before)) &&
                           (offset_ + bytes < file_->size() || validator_.Finish());
  if (!well_formed) {
    const int64_t at = validator_.error_offset() - (offset_ - static_cast<int64_t>(before));
    return absl::InvalidArgumentError(absl::StrCat(
        file_->path(), ":", line_ + std::count(buffer_.begin(), buffer_.begin() + at, '\n'), ": the byte at offset ",
        validator_.error_offset(), " of the file does not begin a complete character of ",
        "UTF-8; if this is text in another encoding, convert it, for instance with iconv -f WINDOWS-1252 -t UTF-8"));
  }
  offset_ += bytes;
  return absl::OkStatus();
}

absl::Status DocumentReader::TooLarge(absl::string_view what) const {
  return absl::ResourceExhaustedError(absl::StrCat(file_->path(), ":", line_, ": ", what, " has more than ",
                                                   FormatBytes(options_.largest_piece_bytes)));
}

absl::Status DocumentReader::TakeText(std::vector<DocumentPiece>* pieces) {
  while (true) {
    const bool end = at_end();
    size_t cut = end ? buffer_.size() : 0;
    if (!end && options_.cut_lines && static_cast<int64_t>(buffer_.size()) >= options_.piece_bytes) {
      // What lies before has been searched before.
      const size_t from = buffer_.size() - std::min<size_t>(buffer_.size(), 2 * options_.piece_bytes);
      cut = LastCut(absl::string_view(buffer_).substr(from));
      if (cut > 0) cut += from;
    }
    if (end || cut > 0) {
      line_ += std::count(buffer_.begin(), buffer_.begin() + cut, '\n');
      pieces->push_back({.text = buffer_.substr(0, cut), .begins = begins_, .ends = end});
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

absl::Status DocumentReader::TakeLine(const std::string& line, std::vector<DocumentPiece>* pieces) const {
  if (line.find_first_not_of(" \t\r") == std::string::npos) return absl::OkStatus();
  const auto error = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(file_->path(), ":", line_, ": ", what));
  };
  const absl::StatusOr<Json> json = ParseStrictJson(line);
  if (!json.ok()) return error(json.status().message());
  const auto text = json->find("text");
  if (text == json->end()) return error("it has no \"text\"");
  if (!text->is_string()) return error(absl::StrCat("\"text\": found ", ShownJson(*text), "; wanted a string"));
  pieces->push_back({.text = text->get<std::string>()});
  return absl::OkStatus();
}

absl::Status DocumentReader::TakeLines(std::vector<DocumentPiece>* pieces) {
  SHALE_RETURN_IF_ERROR(Fill());
  size_t begin = 0;
  while (begin < buffer_.size()) {
    size_t end = buffer_.find('\n', begin);
    if (end == std::string::npos) {
      if (!at_end()) break;
      end = buffer_.size();
    }
    SHALE_RETURN_IF_ERROR(TakeLine(buffer_.substr(begin, end - begin), pieces));
    ++line_;
    begin = end + 1;
  }
  buffer_.erase(0, begin);
  if (static_cast<int64_t>(buffer_.size()) > options_.largest_piece_bytes) return TooLarge("a line");
  return at_end() ? NextFile() : absl::OkStatus();
}

absl::Status DocumentReader::Read(std::vector<DocumentPiece>* pieces) {
  const size_t before = pieces->size();
  if (!file_ && next_path_ == 0) SHALE_RETURN_IF_ERROR(NextFile());
  while (file_ && pieces->size() == before) {
    SHALE_RETURN_IF_ERROR(json_lines_ ? TakeLines(pieces) : TakeText(pieces));
  }
  return absl::OkStatus();
}

}  // namespace shale
