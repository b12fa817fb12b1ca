#include "engine/data/token_file.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "engine/io/input_stream.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr size_t kMaxOpenFiles = 128;  // Limit of one source. By default a process may have 1,024 files open.

// Joins a word of each format: "text or llm.c".
std::string JoinFormats(absl::string_view DataFormatEntry::*word, absl::string_view separator) {
  return absl::StrJoin(kDataFormats, separator, [&](std::string* joined, const DataFormatEntry* format) {
    absl::StrAppend(joined, format->*word);
  });
}

// Checks a file of the given format from end to end. Leaves it open in the result.
absl::StatusOr<TokenFile> CheckFile(InputFile file, const DataFormatEntry& format) {
  TokenFile result;
  SHALE_ASSIGN_OR_RETURN(result.tokens, format.check(file));
  result.index_path = file.path();
  result.index_identity = file.identity();
  if (format.tokens_path != nullptr) {
    SHALE_ASSIGN_OR_RETURN(file, InputFile::Open(format.tokens_path(file.path())));
  }
  result.path = file.path();
  result.identity = file.identity();
  result.file = std::move(file);
  return result;
}

// Refuses a compressed file and a list of files, which only text for a tokenizer may be (ListDocumentFiles). Without
// this check, a list would be taken for text, and an error would call a compressed file text in another encoding.
absl::Status CheckHoldsData(const std::string& path, DataFormat format) {
  const bool by_content = format == DataFormat::kByContent;
  if ((by_content || format == DataFormat::kText) && WithoutPacking(path) != path) {
    return absl::InvalidArgumentError(
        absl::StrCat(path,
                     " is compressed, and only text for a tokenizer is decompressed as it is read; give "
                     "data.tokenizer, or decompress the file"));
  }
  if (by_content && absl::EndsWith(path, ".list")) {
    return absl::InvalidArgumentError(
        absl::StrCat(path,
                     " is a list of files, and a list can only name text for a tokenizer (data.tokenizer); give a "
                     "folder, or set data.format=TEXT to train on the bytes of the list itself"));
  }
  return absl::OkStatus();
}

absl::StatusOr<TokenFiles> OpenOneFile(const std::string& path, DataFormat format) {
  SHALE_ASSIGN_OR_RETURN(InputFile file, InputFile::Open(path));
  if (file.size() == 0) return absl::InvalidArgumentError(absl::StrCat(path, " is empty; it must hold text or tokens"));
  SHALE_RETURN_IF_ERROR(CheckHoldsData(path, format));
  SHALE_ASSIGN_OR_RETURN(const DataFormatEntry* found, RecognizeFormat(file));
  // For a single file, the requested format decides. A file that no format recognizes is text: zero bytes are valid
  // UTF-8.
  if (format != DataFormat::kByContent) found = &EntryOf(format);
  if (found == nullptr) found = &kTextFormat;
  SHALE_ASSIGN_OR_RETURN(TokenFile opened, CheckFile(std::move(file), *found));
  if (opened.tokens.count == 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, " holds no tokens: its count is 0"));
  }
  TokenFiles result;
  result.files.push_back(std::move(opened));
  return result;
}

absl::StatusOr<std::vector<std::string>> SortedNames(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> names;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error) return FileError(error.value(), "list folder", folder);
  std::sort(names.begin(), names.end());
  return names;
}

// Returns the name of the index that would belong to a file of tokens: "a.idx" for "a.bin".
std::string IndexOf(const std::string& name) { return name.substr(0, name.size() - 4) + ".idx"; }

absl::StatusOr<TokenFiles> OpenFolder(const std::string& folder, DataFormat format) {
  SHALE_ASSIGN_OR_RETURN(const std::vector<std::string> names, SortedNames(folder));
  const DataFormatEntry* wanted = format == DataFormat::kByContent ? nullptr : &EntryOf(format);
  TokenFiles result;
  std::map<std::pair<uint64_t, uint64_t>, std::string> taken;  // File names, keyed by device and inode.
  for (const std::string& name : names) {
    const auto skip = [&](absl::string_view why) { result.skipped.push_back(absl::StrCat(name, " (", why, ")")); };
    if (name[0] == '.') {
      skip("hidden");
      continue;
    }
    const std::string path = JoinPath(folder, name);
    std::error_code error;
    const std::filesystem::file_status status = std::filesystem::status(path, error);
    if (!std::filesystem::exists(status)) return FileError(error ? error.value() : ENOENT, "open", path);
    if (!std::filesystem::is_regular_file(status)) {
      skip(std::filesystem::is_directory(status) ? "folder" : "not a regular file");
      continue;
    }
    SHALE_ASSIGN_OR_RETURN(InputFile file, InputFile::Open(path));
    const auto [first, is_new] = taken.try_emplace({file.identity().device, file.identity().inode}, name);
    if (!is_new) {
      skip(absl::StrCat("the same as ", first->second));
      continue;
    }
    if (file.size() == 0) {
      skip("empty");
      continue;
    }
    if (absl::EndsWith(name, ".bin") && std::binary_search(names.begin(), names.end(), IndexOf(name))) {
      skip(absl::StrCat("the tokens of ", IndexOf(name)));
      continue;
    }
    if (WithoutPacking(name) != name) {
      skip("compressed");
      continue;
    }
    SHALE_ASSIGN_OR_RETURN(const DataFormatEntry* found, RecognizeFormat(file));
    if (found == nullptr || (wanted != nullptr && wanted != found)) {
      skip(found == &kTextFormat ? absl::StrCat("not ", wanted->article, " ", wanted->file) : "binary");
      continue;
    }
    SHALE_ASSIGN_OR_RETURN(TokenFile opened, CheckFile(std::move(file), *found));
    if (opened.tokens.count == 0) {
      skip("empty");
      continue;
    }
    if (!result.files.empty() && result.files[0].tokens.encoding != opened.tokens.encoding) {
      return absl::InvalidArgumentError(
          absl::StrCat(result.files[0].path, " and ", path, " hold tokens of different kinds (",
                       JoinFormats(&DataFormatEntry::encodings, ", "), "); keep one kind in a folder, or ask for ",
                       JoinFormats(&DataFormatEntry::name, " or "), " files only"));
    }
    if (result.files.size() >= kMaxOpenFiles) opened.file.reset();
    result.files.push_back(std::move(opened));
  }
  if (result.files.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("folder ", folder, " holds no ", wanted != nullptr ? wanted->file : kTextFormat.file, " (",
                     names.size(), " entries, all skipped; subfolders are not searched)"));
  }
  return result;
}

// Reads n tokens of type T and widens them into `out`, through a buffer on the stack.
template <typename T>
absl::Status ReadAs(const InputFile& file, int64_t offset, int64_t n, int32_t* out) {
  if constexpr (sizeof(T) == 4) {
    return file.ReadAt(offset, out, n * sizeof(T));  // ScanTokens verified that the tokens fit int32_t.
  } else {
    constexpr int64_t kChunk = 8192 / sizeof(T);
    T buffer[kChunk];
    for (int64_t at = 0; at < n; at += kChunk) {
      const int64_t count = std::min(kChunk, n - at);
      SHALE_RETURN_IF_ERROR(file.ReadAt(offset + at * sizeof(T), buffer, count * sizeof(T)));
      std::copy(buffer, buffer + count, out + at);
    }
    return absl::OkStatus();
  }
}

}  // namespace

// Reads the file instead of mapping it into memory: a file that is cut short while it is mapped ends the process
// (SIGBUS), and here it is an error. The page cache of the system holds the tokens in both cases.
absl::Status TokenFile::Read(int64_t begin, int64_t n, int32_t* out) const {
  std::optional<InputFile> reopened;
  if (!file.has_value()) {
    SHALE_ASSIGN_OR_RETURN(reopened, InputFile::Open(path));
  }
  const InputFile& input = file.has_value() ? *file : *reopened;
  SHALE_RETURN_IF_ERROR(input.CheckUnchangedSince(identity));
  const int bytes_per_token = tokens.encoding.bytes_per_token;
  const int64_t offset = tokens.header_bytes + begin * bytes_per_token;
  switch (bytes_per_token) {
    case 1: return ReadAs<uint8_t>(input, offset, n, out);
    case 2: return ReadAs<uint16_t>(input, offset, n, out);
    case 4: return ReadAs<uint32_t>(input, offset, n, out);
  }
  return absl::InternalError("unknown token encoding");
}

absl::StatusOr<TokenFiles> OpenTokenFiles(const std::string& path, DataFormat format) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) {
    const absl::Status reason = FileError(error ? error.value() : ENOENT, "open", path);
    std::string message = absl::StrCat(reason.message(), "; data must be a text file, a folder of text files");
    for (const DataFormatEntry* other : kDataFormats) {
      if (other != &kTextFormat) absl::StrAppend(&message, " or ", other->article, " ", other->file);
    }
    return absl::Status(reason.code(), message);
  }
  return std::filesystem::is_directory(status) ? OpenFolder(path, format) : OpenOneFile(path, format);
}

}  // namespace shale
