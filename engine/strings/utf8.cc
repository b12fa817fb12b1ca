#include "engine/strings/utf8.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace shale {
namespace {

// Returns the length of the ASCII prefix. Looks at eight bytes at a time, because most text is ASCII and data sets have
// many gigabytes of it.
size_t AsciiPrefix(absl::string_view bytes) {
  size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + at, 8);
    if ((word & 0x8080808080808080) != 0) break;
  }
  while (at < bytes.size() && static_cast<uint8_t>(bytes[at]) < 0x80) ++at;
  return at;
}

bool IsControl(char c) {
  const uint8_t byte = static_cast<uint8_t>(c);
  return (byte < 0x20 && c != '\t' && c != '\n' && c != '\r') || byte == 0x7F;
}

constexpr char kReplacement[] = "\xEF\xBF\xBD";

}  // namespace

bool Utf8Validator::Feed(absl::string_view bytes) {
  if (failed_) return false;
  size_t at = 0;
  while (true) {
    if (pending_ == 0) at += AsciiPrefix(bytes.substr(at));
    if (at == bytes.size()) break;
    const uint8_t byte = static_cast<uint8_t>(bytes[at]);
    if (pending_ > 0) {
      failed_ = byte < low_ || byte > high_;
      --pending_;
      low_ = 0x80;
      high_ = 0xBF;
    } else {
      character_offset_ = offset_ + at;
      pending_ = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
      if (byte == 0xE0) low_ = 0xA0;   // Excludes overlong forms.
      if (byte == 0xED) high_ = 0x9F;  // Excludes surrogates.
      if (byte == 0xF0) low_ = 0x90;
      if (byte == 0xF4) high_ = 0x8F;  // Excludes values above U+10FFFF.
      failed_ = byte < 0xC2 || byte > 0xF4;
    }
    if (failed_) return false;
    ++at;
  }
  offset_ += bytes.size();
  return true;
}

bool Utf8Validator::Finish() {
  failed_ = failed_ || pending_ > 0;
  return !failed_;
}

bool IsUtf8(absl::string_view bytes) {
  Utf8Validator validator;
  return validator.Feed(bytes) && validator.Finish();
}

size_t FindNonText(absl::string_view bytes) {
  Utf8Validator validator;
  const bool valid = validator.Feed(bytes) && validator.Finish();
  const absl::string_view prefix = valid ? bytes : bytes.substr(0, validator.error_offset());
  const auto control = std::find_if(prefix.begin(), prefix.end(), IsControl);
  if (control != prefix.end()) return control - prefix.begin();
  return valid ? absl::string_view::npos : prefix.size();
}

bool IsLineOfPath(absl::string_view bytes) {
  return FindNonText(bytes) == absl::string_view::npos && bytes.find_first_of("\r\n") == absl::string_view::npos;
}

bool IsLineOfText(absl::string_view bytes) {
  return IsLineOfPath(bytes) && bytes.find('\t') == absl::string_view::npos;
}

std::string Utf8Stream::Push(uint8_t byte) {
  pending_.push_back(static_cast<char>(byte));
  Utf8Validator validator;
  if (validator.Feed(pending_)) return validator.Finish() ? std::exchange(pending_, "") : "";
  const bool alone = pending_.size() == 1;
  pending_.clear();
  // The byte that ended an incomplete character may itself begin one.
  return alone ? kReplacement : kReplacement + Push(byte);
}

std::string Utf8Stream::Finish() { return std::exchange(pending_, "").empty() ? "" : kReplacement; }

}  // namespace shale
