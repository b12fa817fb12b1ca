#include "engine/tokenize/document_reader.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/data/data_format.h"
#include "engine/io/file.h"
#include "engine/text/numbers.h"
#include "engine/tokenize/character.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr int64_t kMaxListBytes = int64_t{1} << 26;

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

// Collects files.
class Lister {
 public:
  // Adds the files at `path`, which a list may name if `lists` allows it.
  absl::Status Add(const std::string& path, bool lists);
  DocumentFiles& files() { return files_; }

 private:
  absl::Status AddFolder(const std::string& path);

  DocumentFiles files_;
  std::map<std::pair<uint64_t, uint64_t>, std::string> taken_;  // Names in folders, by device and inode.
};

absl::Status Lister::AddFolder(const std::string& path) {
  SHALE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(path));
  for (const std::string& name : names) {
    const std::string inside = JoinPath(path, name);
    const auto skip = [&](absl::string_view why) { files_.skipped.push_back(absl::StrCat(name, " (", why, ")")); };
    if (name[0] == '.') continue;
    struct stat found;
    if (stat(inside.c_str(), &found) != 0) return FileError(errno, "open", inside);
    if (!S_ISREG(found.st_mode)) {
      skip(S_ISDIR(found.st_mode) ? "folder" : "not a regular file");
      continue;
    }
    if (found.st_size == 0) continue;
    const auto [first, is_new] = taken_.try_emplace({found.st_dev, found.st_ino}, name);
    if (!is_new) {
      skip(absl::StrCat("the same as ", first->second));
      continue;
    }
    if (WithoutPacking(name) == name) {
      SHALE_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(inside));
      SHALE_ASSIGN_OR_RETURN(const DataFormatEntry* format, RecognizeFormat(file));
      if (format == nullptr) {
        skip("binary");
        continue;
      }
    }
    files_.paths.push_back(inside);
  }
  return absl::OkStatus();
}

absl::Status Lister::Add(const std::string& path, bool lists) {
  struct stat found;
  if (stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode)) return AddFolder(path);
  if (!lists || !absl::EndsWith(path, ".list")) {
    SHALE_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
    SHALE_RETURN_IF_ERROR(RecognizeFormat(file).status());  // Its error says how to convert the file.
    if (file.size() > 0) files_.paths.push_back(path);
    return absl::OkStatus();
  }
  SHALE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxListBytes));
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : path.substr(0, slash + 1);
  int64_t number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    absl::ConsumeSuffix(&line, "\r");
    if (line.empty()) continue;
    const absl::Status status = Add(JoinPath(folder, line), /*lists=*/false);
    if (!status.ok()) return absl::Status(status.code(), absl::StrCat(path, ":", number, ": ", status.message()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DocumentFiles> ListDocumentFiles(const std::string& path) {
  Lister lister;
  SHALE_RETURN_IF_ERROR(lister.Add(path, /*lists=*/true));
  DocumentFiles& files = lister.files();
  if (!files.paths.empty()) return std::move(files);
  return absl::InvalidArgumentError(absl::StrCat(path, " has no data", files.skipped.empty() ? "" : ": skipped ",
                                                 absl::StrJoin(files.skipped, ", ")));
}

absl::StatusOr<DocumentReader> DocumentReader::Open(const std::string& path, const Options& options) {
  DocumentReader reader(options);
  SHALE_ASSIGN_OR_RETURN(reader.files_, ListDocumentFiles(path));
  for (const std::string& inside : reader.files_.paths) {
    SHALE_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(inside));
    reader.total_bytes_ += file.size();
  }
  return reader;
}

absl::Status DocumentReader::NextFile() {
  bytes_before_ = bytes_read();
  stream_.reset();
  if (next_path_ == files_.paths.size()) return absl::OkStatus();
  path_ = std::make_shared<const std::string>(files_.paths[next_path_++]);
  SHALE_ASSIGN_OR_RETURN(InputStream opened, InputStream::Open(*path_));
  stream_.emplace(std::move(opened));
  rows_ = options_.all_rows || absl::EndsWith(WithoutPacking(*path_), ".jsonl");
  offset_ = 0;
  line_ = 1;
  begins_ = true;
  validator_ = Utf8Validator();
  return absl::OkStatus();
}

absl::Status DocumentReader::Fill() {
  const size_t before = buffer_.size();
  SHALE_RETURN_IF_ERROR(stream_->Append(options_.piece_bytes, &buffer_));
  offset_ += static_cast<int64_t>(buffer_.size() - before);
  return rows_ ? absl::OkStatus() : CheckText(before);
}

absl::Status DocumentReader::CheckText(size_t before) {
  const bool well_formed =
      validator_.Feed(absl::string_view(buffer_).substr(before)) && (!stream_->at_end() || validator_.Finish());
  if (well_formed) return absl::OkStatus();
  const int64_t at = validator_.error_offset() - (offset_ - std::ssize(buffer_));
  return absl::InvalidArgumentError(absl::StrCat(
      *path_, ":", line_ + std::count(buffer_.begin(), buffer_.begin() + at, '\n'), ": the byte at offset ",
      validator_.error_offset(), " of the file does not begin a complete character of ",
      "UTF-8; if this is text in another encoding, convert it, for instance with iconv -f WINDOWS-1252 -t UTF-8"));
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

absl::Status DocumentReader::TakeLines(std::vector<DocumentPiece>* pieces) {
  const size_t searched = buffer_.size();
  SHALE_RETURN_IF_ERROR(Fill());
  size_t begin = 0;
  while (begin < buffer_.size()) {
    size_t end = buffer_.find('\n', std::max(begin, searched));
    if (end == std::string::npos) {
      if (!stream_->at_end()) break;
      end = buffer_.size();
    }
    const absl::string_view line = absl::string_view(buffer_).substr(begin, end - begin);
    if (line.find_first_not_of(" \t\r") != absl::string_view::npos) {
      pieces->push_back({.text = std::string(line), .is_row = true, .path = path_, .line = line_});
    }
    ++line_;
    begin = end + 1;
  }
  buffer_.erase(0, begin);
  if (static_cast<int64_t>(buffer_.size()) > options_.largest_piece_bytes) return TooLarge("a line");
  return stream_->at_end() ? NextFile() : absl::OkStatus();
}

absl::Status DocumentReader::Read(std::vector<DocumentPiece>* pieces) {
  const size_t before = pieces->size();
  if (!stream_ && next_path_ == 0) SHALE_RETURN_IF_ERROR(NextFile());
  while (stream_ && pieces->size() == before) {
    SHALE_RETURN_IF_ERROR(rows_ ? TakeLines(pieces) : TakeText(pieces));
  }
  return absl::OkStatus();
}

}  // namespace shale
