// The format of NumPy's .npy files (numpy.lib.format): a magic string, two bytes of the version, the length of the
// header (16 bits in version 1, else 32), the header, and then the elements. The header is a dictionary as Python
// writes it:
// {'descr': '<u2', 'fortran_order': False, 'shape': (1000,), }
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/files/data/data_format.h"
#include "engine/strings/messages.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr absl::string_view kNpyMagic = "\x93NUMPY";
constexpr int64_t kNpyVersionBytes = 2;
constexpr int64_t kMostNpyHeaderBytes = 1 << 16;

bool RecognizesNpy(absl::string_view head) { return absl::StartsWith(head, kNpyMagic); }

struct NpyHeader {
  std::string text;
  int64_t bytes = 0;  // With all that stands before the elements.
};

absl::StatusOr<NpyHeader> ReadNpyHeader(const InputFile& file) {
  constexpr int64_t kVersionAt = kNpyMagic.size(), kLengthAt = kVersionAt + kNpyVersionBytes;
  char begin[kLengthAt + 4] = {};
  if (file.size() < kLengthAt + 4) return DamagedFile(file, "it has no whole header of a NumPy array");
  SHALE_RETURN_IF_ERROR(file.ReadAt(0, begin, sizeof(begin)));
  if (!RecognizesNpy(absl::string_view(begin, kVersionAt))) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), " is no NumPy array: it does not begin with \\x93NUMPY; give a file of numpy.save"));
  }
  const int version = static_cast<uint8_t>(begin[kVersionAt]);
  if (version < 1 || version > 3) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), " is a NumPy array of version ", version, "; supported: versions 1 to 3"));
  }
  uint32_t length = 0;
  const int length_bytes = version == 1 ? 2 : 4;
  std::memcpy(&length, begin + kLengthAt, length_bytes);
  NpyHeader header = {.bytes = kLengthAt + length_bytes + length};
  if (length > kMostNpyHeaderBytes || header.bytes > file.size()) {
    return DamagedFile(file, absl::StrCat("it promises a header of ", length, " bytes"));
  }
  header.text.resize(length);
  SHALE_RETURN_IF_ERROR(file.ReadAt(kLengthAt + length_bytes, header.text.data(), length));
  return header;
}

// Returns what stands between `key` and `end` in the text of a header, without space around it. Empty if there is none.
absl::string_view ValueOf(absl::string_view header, absl::string_view key, absl::string_view end) {
  const size_t at = header.find(absl::StrCat("'", key, "':"));
  if (at == absl::string_view::npos) return "";
  header.remove_prefix(at + key.size() + 3);
  const size_t stop = header.find(end);
  return stop == absl::string_view::npos ? "" : absl::StripAsciiWhitespace(header.substr(0, stop));
}

// Returns how many bytes a token of this type has, or 0 if such arrays are not read. A negative token of an i4 is found
// like one that is too large.
int BytesOfTokens(absl::string_view descr) {
  if (descr == "|u1") return 1;
  if (descr == "<u2") return 2;
  return descr == "<u4" || descr == "<i4" ? 4 : 0;
}

absl::StatusOr<TokenContents> CheckNpy(const InputFile& file) {
  SHALE_ASSIGN_OR_RETURN(const NpyHeader header, ReadNpyHeader(file));
  absl::string_view descr = ValueOf(header.text, "descr", ",");
  if (absl::ConsumePrefix(&descr, "'")) absl::ConsumeSuffix(&descr, "'");
  const int bytes_per_token = BytesOfTokens(descr);
  if (bytes_per_token == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), " is a NumPy array of ", Quoted(descr),
                     "; tokens are read as |u1, <u2, <u4 or <i4: numpy.save(FILE, array.astype(\"<u4\"))"));
  }
  absl::string_view shape = ValueOf(header.text, "shape", ")");
  int64_t count = -1;
  if (!absl::ConsumePrefix(&shape, "(") || !absl::ConsumeSuffix(&shape, ",") || !absl::SimpleAtoi(shape, &count) ||
      count < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), " is a NumPy array with the shape (", shape,
                     "), and tokens are read from an array with one dimension: numpy.save(FILE, array.reshape(-1))"));
  }
  TokenContents contents{
      .encoding = {.format = DataFormat::kNpy, .tokenizer = "NumPy", .bytes_per_token = bytes_per_token},
      .header_bytes = header.bytes,
      .count = count};
  const int64_t bytes = file.size() - header.bytes;
  if (bytes / bytes_per_token != count || bytes % bytes_per_token != 0) {
    return DamagedFile(file, absl::StrCat("its header promises ", count, " tokens of ", bytes_per_token,
                                          " bytes, and it has ", bytes, " bytes of them"));
  }
  SHALE_RETURN_IF_ERROR(ScanTokens(file, &contents));
  return contents;
}

}  // namespace

const DataFormatEntry kNpyFormat = {.format = DataFormat::kNpy,
                                    .name = "NumPy",
                                    .article = "a",
                                    .file = "NumPy array of tokens",
                                    .encodings = "NumPy",
                                    .recognizes = RecognizesNpy,
                                    .check = CheckNpy};

}  // namespace shale
