#include "engine/config/text_bytes.h"

#include <cstdint>

namespace shale {
namespace {

// Returns the length of the well-formed UTF-8 sequence that starts at `at`, 0 if there is none (Unicode, table 3-7).
size_t SequenceLength(absl::string_view bytes, size_t at) {
  const auto byte = [&](size_t i) { return at + i < bytes.size() ? static_cast<uint8_t>(bytes[at + i]) : 0; };
  const auto continues = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return continues(1) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    if ((lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xED && byte(1) > 0x9F)) return 0;
    return continues(1) && continues(2) ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    if ((lead == 0xF0 && byte(1) < 0x90) || (lead == 0xF4 && byte(1) > 0x8F)) return 0;
    return continues(1) && continues(2) && continues(3) ? 4 : 0;
  }
  return 0;
}

bool IsControl(char c) {
  const uint8_t byte = static_cast<uint8_t>(c);
  return (byte < 0x20 && c != '\t' && c != '\n' && c != '\r') || byte == 0x7F;
}

}  // namespace

size_t FindNonText(absl::string_view bytes) {
  size_t at = 0;
  while (at < bytes.size()) {
    const size_t length = SequenceLength(bytes, at);
    if (length == 0 || IsControl(bytes[at])) return at;
    at += length;
  }
  return absl::string_view::npos;
}

bool IsLineOfText(absl::string_view bytes) {
  return FindNonText(bytes) == absl::string_view::npos && bytes.find_first_of("\t\r\n") == absl::string_view::npos;
}

}  // namespace shale
