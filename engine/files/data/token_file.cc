#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "engine/files/data/token_source.h"
#include "engine/files/io/input_stream.h"
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
  result.content.emplace(file.identity(), result.tokens.header_bytes, result.tokens.bytes(), result.tokens.crc64);
  result.file = std::move(file);
  return result;
}

absl::Status RefusePacked(const std::string& path) {
  return absl::InvalidArgumentError(
      absl::StrCat(path,
                   " is compressed, and only text for a tokenizer is decompressed as it is read; give data.tokenizer, "
                   "or decompress the file"));
}

// Refuses what only text for a tokenizer may be: a compressed file, rows of JSON, and a list of files.
absl::Status CheckNeedsNoTokenizer(const DataFile& file, DataFormat format) {
  if (file.content.packed) return RefusePacked(file.path);
  if (format != DataFormat::kByContent) return absl::OkStatus();
  if (file.rows) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.tokenizer: missing, and ", file.path,
                     " has JSON Lines, which only a tokenizer makes tokens of; give a folder with tokenizer.json, or "
                     "set data.format=TEXT to train on the bytes of the file as they are"));
  }
  if (absl::EndsWithIgnoreCase(file.path, ".list")) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path,
                     " is a list of files, and a list can only name text for a tokenizer (data.tokenizer); give a "
                     "folder, or set data.format=TEXT to train on the bytes of the list itself"));
  }
  return absl::OkStatus();
}

absl::StatusOr<TokenFiles> OpenFiles(const std::string& path, bool is_folder, const DataFilesOptions& options) {
  SHALE_ASSIGN_OR_RETURN(DataFiles found, ListDataFiles(path, options));
  TokenFiles result = {.skipped = std::move(found.skipped)};
  for (const DataFile& one : found.files) {
    SHALE_RETURN_IF_ERROR(CheckNeedsNoTokenizer(one, options.format));
    // For a single file, the format that is asked for decides. A file that no format recognizes is text: zero bytes are
    // valid UTF-8.
    const DataFormatEntry* format = options.format != DataFormat::kByContent ? &EntryOf(options.format)
                                    : one.content.format != nullptr          ? one.content.format
                                                                             : &kTextFormat;
    SHALE_ASSIGN_OR_RETURN(InputFile file, InputFile::Open(one.path));
    SHALE_ASSIGN_OR_RETURN(TokenFile opened, CheckFile(std::move(file), *format));
    if (opened.tokens.count == 0 && is_folder) {
      result.skipped.push_back(absl::StrCat(one.path, " (no tokens)"));
      continue;
    }
    if (opened.tokens.count == 0) {
      return absl::InvalidArgumentError(absl::StrCat(path, " holds no tokens: its count is 0"));
    }
    if (!result.files.empty() && result.files[0].tokens.encoding != opened.tokens.encoding) {
      return absl::InvalidArgumentError(
          absl::StrCat(result.files[0].path, " and ", one.path, " hold tokens of different kinds (",
                       JoinFormats(&DataFormatEntry::encodings, ", "), "); keep one kind in a folder, or ask for ",
                       JoinFormats(&DataFormatEntry::name, " or "), " files only"));
    }
    if (result.files.size() >= kMaxOpenFiles) opened.file.reset();
    result.files.push_back(std::move(opened));
  }
  if (result.files.empty()) return absl::InvalidArgumentError(absl::StrCat(path, " holds no tokens"));
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
  SHALE_RETURN_IF_ERROR(content->Check(input));
  const int bytes_per_token = tokens.encoding.bytes_per_token;
  const int64_t offset = tokens.header_bytes + begin * bytes_per_token;
  switch (bytes_per_token) {
    case 1: return ReadAs<uint8_t>(input, offset, n, out);
    case 2: return ReadAs<uint16_t>(input, offset, n, out);
    case 4: return ReadAs<uint32_t>(input, offset, n, out);
  }
  return absl::InternalError("unknown token encoding");
}

absl::StatusOr<TokenFiles> OpenTokenFiles(const std::string& path, const DataFilesOptions& options) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) {
    const absl::Status reason = FileError(error ? error.value() : ENOENT, "open", path);
    std::string message =
        absl::StrCat(reason.message(), "; data is a file of text or of rows of JSON, a folder of such files");
    for (const DataFormatEntry* other : kDataFormats) {
      if (other != &kTextFormat) absl::StrAppend(&message, " or ", other->article, " ", other->file);
    }
    return absl::Status(reason.code(), message);
  }
  if (std::filesystem::is_directory(status)) return OpenFiles(path, /*is_folder=*/true, options);
  SHALE_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  if (file.size() == 0) return absl::InvalidArgumentError(absl::StrCat(path, " is empty; it must hold text or tokens"));
  // Says so also of a compressed file that is damaged.
  SHALE_ASSIGN_OR_RETURN(const bool packed, IsPacked(file));
  if (packed) return RefusePacked(path);
  return OpenFiles(path, /*is_folder=*/false, options);
}

}  // namespace shale
