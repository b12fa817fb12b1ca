// The text format: UTF-8, and every byte is a token.
#include <algorithm>
#include <cstdint>
#include <string>

#include "engine/files/data/content.h"
#include "engine/files/data/data_format.h"
#include "engine/strings/utf8.h"
#include "kernels/check.h"

namespace shale {
namespace {

// Returns the error for a file with an ill-formed sequence at `offset`. Reads the file again to count the lines before
// it, so that the check of a valid file need not count them.
absl::Status NotUtf8At(const InputFile& file, int64_t offset) {
  constexpr int64_t kPieceBytes = int64_t{1} << 18;
  int64_t line = 1;
  std::string buffer;
  for (int64_t at = 0; at < offset; at += buffer.size()) {
    buffer.resize(std::min(offset - at, kPieceBytes));
    SHALE_RETURN_IF_ERROR(file.ReadAt(at, buffer.data(), buffer.size()));
    line += std::count(buffer.begin(), buffer.end(), '\n');
  }
  uint8_t byte = 0;
  SHALE_RETURN_IF_ERROR(file.ReadAt(offset, &byte, 1));
  return NotUtf8(file, byte, offset, line);
}

bool RecognizesText(absl::string_view head) { return head.find('\0') == absl::string_view::npos; }

absl::StatusOr<TokenContents> CheckText(const InputFile& file) {
  TokenContents contents{.encoding = {.format = DataFormat::kText,
                                      .tokenizer = "bytes",
                                      .vocabulary = kTextVocabulary,
                                      .bytes_per_token = 1},
                         .count = file.size()};
  Utf8Validator validator;
  SHALE_RETURN_IF_ERROR(ScanTokens(file, &contents, [&](absl::string_view bytes) {
    return validator.Feed(bytes) ? absl::OkStatus() : NotUtf8At(file, validator.error_offset());
  }));
  if (!validator.Finish()) return NotUtf8At(file, validator.error_offset());
  return contents;
}

}  // namespace

const DataFormatEntry kTextFormat = {.format = DataFormat::kText,
                                     .name = "text",
                                     .article = "a",
                                     .file = "text file",
                                     .encodings = "text",
                                     .recognizes = RecognizesText,
                                     .check = CheckText};

}  // namespace shale
