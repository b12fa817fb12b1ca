#include "engine/data/token_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "engine/text/utf8.h"
#include "kernels/check.h"

namespace shale {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian and read as they are");

constexpr int64_t kLlmcHeaderBytes = 1024;
constexpr int32_t kGpt2Magic = 20240520;
constexpr int32_t kLlama3Magic = 20240801;
constexpr int32_t kGpt2Version = 1;
constexpr int32_t kLlama3Version = 7;

constexpr int64_t kBinaryProbeBytes = 8000;  // As many as git searches for a zero byte.
constexpr int64_t kScanBytes = int64_t{1} << 18;
constexpr size_t kMaxOpenFiles = 128;  // Limit for one source; by default a process may have 1,024 open.

enum class Kind { kText, kLlmc, kBinary };

absl::StatusOr<Kind> FindKind(const InputFile& file) {
  char head[kBinaryProbeBytes];
  const int64_t size = std::min(file.size(), kBinaryProbeBytes);
  SHALE_RETURN_IF_ERROR(file.ReadAt(0, head, size));
  int32_t magic = 0;
  if (size >= 4) std::memcpy(&magic, head, 4);
  if (magic == kGpt2Magic || magic == kLlama3Magic) return Kind::kLlmc;
  return std::memchr(head, 0, size) != nullptr ? Kind::kBinary : Kind::kText;
}

// Returns the error for a file with an ill-formed sequence at `offset`. Only then are the lines before it counted.
absl::Status NotUtf8(const InputFile& file, int64_t offset) {
  int64_t line = 1;
  std::string buffer;
  for (int64_t at = 0; at < offset; at += buffer.size()) {
    buffer.resize(std::min(offset - at, kScanBytes));
    SHALE_RETURN_IF_ERROR(file.ReadAt(at, buffer.data(), buffer.size()));
    line += std::count(buffer.begin(), buffer.end(), '\n');
  }
  uint8_t byte = 0;
  SHALE_RETURN_IF_ERROR(file.ReadAt(offset, &byte, 1));
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is not UTF-8: byte 0x%02X at offset %d (line %d) does not begin a complete character; if it "
                      "is text in another encoding, convert it, for instance with iconv -f WINDOWS-1252 -t UTF-8",
                      file.path(), byte, offset, line));
}

// Returns the largest of n > 0 tokens. Blocks of fixed length compile to vector code.
template <typename T>
T Largest(const T* tokens, int64_t n) {
  constexpr int64_t kBlock = 64;
  T lanes[kBlock] = {};
  int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    for (int64_t j = 0; j < kBlock; ++j) lanes[j] = std::max(lanes[j], tokens[i + j]);
  }
  T largest = *std::max_element(lanes, lanes + kBlock);
  for (; i < n; ++i) largest = std::max(largest, tokens[i]);
  return largest;
}

// Reads all tokens once. Finds the largest, and checks that text is UTF-8.
template <typename T>
absl::Status Scan(const InputFile& file, TokenFile* tokens) {
  std::vector<T> buffer(std::min<int64_t>(tokens->count, kScanBytes / sizeof(T)));
  Utf8Validator validator;
  tokens->largest = -1;
  for (int64_t at = 0; at < tokens->count;) {
    const int64_t n = std::min<int64_t>(buffer.size(), tokens->count - at);
    SHALE_RETURN_IF_ERROR(file.ReadAt(tokens->header_bytes + at * sizeof(T), buffer.data(), n * sizeof(T)));
    if constexpr (sizeof(T) == 1) {
      if (!validator.Feed(absl::string_view(reinterpret_cast<const char*>(buffer.data()), n))) {
        return NotUtf8(file, validator.error_offset());
      }
    }
    if (const T largest = Largest(buffer.data(), n); int64_t{largest} > tokens->largest) {
      tokens->largest = largest;
      tokens->largest_position = at + (std::find(buffer.begin(), buffer.begin() + n, largest) - buffer.begin());
    }
    at += n;
  }
  if (!validator.Finish()) return NotUtf8(file, validator.error_offset());
  if (tokens->largest > std::numeric_limits<int32_t>::max()) {
    return absl::DataLossError(absl::StrCat(tokens->path, " is damaged: token ", tokens->largest, " at position ",
                                            tokens->largest_position, " is outside every vocabulary"));
  }
  return absl::OkStatus();
}

absl::Status ReadLlmcHeader(const InputFile& file, TokenFile* tokens) {
  const std::string& path = file.path();
  int32_t header[3] = {};
  if (file.size() < kLlmcHeaderBytes) {
    return absl::DataLossError(absl::StrCat(path, " has ", file.size(), " bytes, less than the header of ",
                                            kLlmcHeaderBytes, " that an llm.c token file begins with"));
  }
  SHALE_RETURN_IF_ERROR(file.ReadAt(0, header, sizeof(header)));
  const auto [magic, version, count] = header;
  if (magic != kGpt2Magic && magic != kLlama3Magic) {
    return absl::InvalidArgumentError(absl::StrCat(path, " begins with the number ", magic,
                                                   "; an llm.c token file begins with ", kGpt2Magic, " (GPT-2) or ",
                                                   kLlama3Magic, " (Llama-3)"));
  }
  const int32_t known_version = magic == kGpt2Magic ? kGpt2Version : kLlama3Version;
  if (version != known_version) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is an llm.c token file of version ", version,
                                                   "; only version ", known_version, " is supported"));
  }
  tokens->encoding = magic == kGpt2Magic ? TokenEncoding::kLlmcGpt2 : TokenEncoding::kLlmcLlama3;
  tokens->header_bytes = kLlmcHeaderBytes;
  tokens->count = count;
  const int64_t expected_bytes = kLlmcHeaderBytes + int64_t{count} * BytesPerToken(tokens->encoding);
  if (count < 0 || file.size() != expected_bytes) {
    return absl::DataLossError(absl::StrCat(
        path, count >= 0 && file.size() < expected_bytes ? " was cut short" : " is damaged", ": its header promises ",
        count, " tokens, ", expected_bytes, " bytes in all, but it has ", file.size(), "; copy or tokenize it again"));
  }
  return absl::OkStatus();
}

// Checks a file of the given kind from end to end. Leaves it open in the result.
absl::StatusOr<TokenFile> CheckFile(InputFile file, Kind kind) {
  TokenFile tokens;
  tokens.path = file.path();
  tokens.count = file.size();
  tokens.identity = file.identity();
  if (kind == Kind::kLlmc) SHALE_RETURN_IF_ERROR(ReadLlmcHeader(file, &tokens));
  switch (BytesPerToken(tokens.encoding)) {
    case 1: SHALE_RETURN_IF_ERROR(Scan<uint8_t>(file, &tokens)); break;
    case 2: SHALE_RETURN_IF_ERROR(Scan<uint16_t>(file, &tokens)); break;
    case 4: SHALE_RETURN_IF_ERROR(Scan<uint32_t>(file, &tokens)); break;
  }
  tokens.file = std::move(file);
  return tokens;
}

absl::StatusOr<TokenFiles> OpenOneFile(const std::string& path, DataFormat format) {
  SHALE_ASSIGN_OR_RETURN(InputFile file, InputFile::Open(path));
  if (file.size() == 0) return absl::InvalidArgumentError(absl::StrCat(path, " is empty; it must hold text or tokens"));
  SHALE_ASSIGN_OR_RETURN(Kind kind, FindKind(file));
  // For a single file, the requested format decides. Zero bytes do not make it binary: text may contain them.
  if (format == DataFormat::kLlmc) kind = Kind::kLlmc;
  if (format == DataFormat::kText || kind == Kind::kBinary) kind = Kind::kText;
  SHALE_ASSIGN_OR_RETURN(TokenFile tokens, CheckFile(std::move(file), kind));
  if (tokens.count == 0) return absl::InvalidArgumentError(absl::StrCat(path, " holds no tokens: its count is 0"));
  TokenFiles result;
  result.files.push_back(std::move(tokens));
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

absl::StatusOr<TokenFiles> OpenFolder(const std::string& folder, DataFormat format) {
  SHALE_ASSIGN_OR_RETURN(const std::vector<std::string> names, SortedNames(folder));
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
    SHALE_ASSIGN_OR_RETURN(const Kind kind, FindKind(file));
    if (kind == Kind::kBinary || (kind == Kind::kLlmc && format == DataFormat::kText)) {
      skip("binary");
      continue;
    }
    if (kind == Kind::kText && format == DataFormat::kLlmc) {
      skip("not an llm.c token file");
      continue;
    }
    SHALE_ASSIGN_OR_RETURN(TokenFile tokens, CheckFile(std::move(file), kind));
    if (tokens.count == 0) {
      skip("empty");
      continue;
    }
    if (!result.files.empty() && result.files[0].encoding != tokens.encoding) {
      return absl::InvalidArgumentError(absl::StrCat(
          result.files[0].path, " and ", path,
          " hold tokens of different kinds (text, llm.c for GPT-2, llm.c for Llama-3); keep one kind in a folder, or "
          "ask for text or llm.c files only"));
    }
    if (result.files.size() >= kMaxOpenFiles) tokens.file.reset();
    result.files.push_back(std::move(tokens));
  }
  if (result.files.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("folder ", folder, " holds no ", format == DataFormat::kLlmc ? "llm.c token" : "text", " file (",
                     names.size(), " entries, all skipped; subfolders are not searched)"));
  }
  return result;
}

// Reads n tokens of type T and widens them into `out`, through a buffer on the stack.
template <typename T>
absl::Status ReadAs(const InputFile& file, int64_t offset, int64_t n, int32_t* out) {
  if constexpr (sizeof(T) == 4) {
    return file.ReadAt(offset, out, n * sizeof(T));  // Scan verified that they fit int32_t.
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

absl::Status TokenFile::Read(int64_t begin, int64_t n, int32_t* out) const {
  std::optional<InputFile> reopened;
  if (!file.has_value()) {
    SHALE_ASSIGN_OR_RETURN(reopened, InputFile::Open(path));
  }
  const InputFile& input = file.has_value() ? *file : *reopened;
  SHALE_RETURN_IF_ERROR(input.CheckUnchangedSince(identity));
  const int64_t offset = header_bytes + begin * BytesPerToken(encoding);
  switch (encoding) {
    case TokenEncoding::kBytes: return ReadAs<uint8_t>(input, offset, n, out);
    case TokenEncoding::kLlmcGpt2: return ReadAs<uint16_t>(input, offset, n, out);
    case TokenEncoding::kLlmcLlama3: return ReadAs<uint32_t>(input, offset, n, out);
  }
  return absl::InternalError("unknown token encoding");
}

absl::StatusOr<TokenFiles> OpenTokenFiles(const std::string& path, DataFormat format) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) {
    const absl::Status reason = FileError(error ? error.value() : ENOENT, "open", path);
    return absl::Status(reason.code(), absl::StrCat(reason.message(),
                                                    "; data must be a text file, a folder of text "
                                                    "files or an llm.c token file"));
  }
  return std::filesystem::is_directory(status) ? OpenFolder(path, format) : OpenOneFile(path, format);
}

}  // namespace shale
