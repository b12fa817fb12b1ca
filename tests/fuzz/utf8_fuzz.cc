// Fuzzes the UTF-8 code. Checks the validator, fed in one piece and in two, against a decoder written from the
// standard's table; the stream that repairs text; and JSON quoting, by parsing the quoted string.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/string_view.h"
#include "engine/strings/messages.h"
#include "engine/strings/utf8.h"
#include "kernels/check.h"
#include "tests/fuzz/properties.h"

namespace shale {
namespace {

constexpr absl::string_view kReplacement = "\uFFFD";

// Returns the length in bytes of the character at `at`, or 0 if no valid character begins there. Decodes the code point
// first, and then checks its range.
size_t CharacterAt(absl::string_view bytes, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t lead = byte(at);
  if (lead < 0x80) return 1;
  const size_t length = lead >> 5 == 0b110 ? 2 : lead >> 4 == 0b1110 ? 3 : lead >> 3 == 0b11110 ? 4 : 0;
  if (length == 0 || at + length > bytes.size()) return 0;
  uint32_t number = lead & (0x7F >> length);
  for (size_t i = 1; i < length; ++i) {
    if (byte(at + i) >> 6 != 0b10) return 0;
    number = number << 6 | (byte(at + i) & 0x3F);
  }
  const uint32_t least = length == 2 ? 0x80 : length == 3 ? 0x800 : 0x10000;
  const bool surrogate = number >= 0xD800 && number <= 0xDFFF;
  return number < least || number > 0x10FFFF || surrogate ? 0 : length;
}

// Returns the offset of the first byte that begins no valid character, or the size if all are valid.
size_t WellFormedPrefix(absl::string_view bytes) {
  size_t at = 0;
  while (at < bytes.size()) {
    const size_t length = CharacterAt(bytes, at);
    if (length == 0) break;
    at += length;
  }
  return at;
}

void CheckValidator(absl::string_view first, absl::string_view second, size_t well_formed) {
  Utf8Validator validator;
  const bool ok = validator.Feed(first) && validator.Feed(second) && validator.Finish();
  SHALE_CHECK(ok == (well_formed == first.size() + second.size())) << well_formed;
  SHALE_CHECK(ok || validator.error_offset() == static_cast<int64_t>(well_formed)) << validator.error_offset();
}

// Checks that the stream passes valid characters through unchanged, and that everything it outputs is valid UTF-8.
void CheckStream(absl::string_view bytes, size_t well_formed) {
  Utf8Stream stream;
  std::string out;
  for (const char c : bytes) {
    const std::string shown = stream.Push(static_cast<uint8_t>(c));
    SHALE_CHECK(IsUtf8(shown));
    out += shown;
  }
  out += stream.Finish();
  SHALE_CHECK(IsUtf8(out));
  SHALE_CHECK(absl::string_view(out).substr(0, well_formed) == bytes.substr(0, well_formed));
  if (well_formed == bytes.size()) {
    SHALE_CHECK(out == bytes);
  } else {
    SHALE_CHECK(absl::string_view(out).substr(well_formed).find(kReplacement) != absl::string_view::npos);
  }
}

void CheckQuote(absl::string_view bytes, bool is_utf8) {
  const std::string quoted = JsonQuote(bytes);
  const nlohmann::json read = nlohmann::json::parse(quoted, nullptr, /*allow_exceptions=*/false);
  SHALE_CHECK(read.is_string()) << quoted;
  SHALE_CHECK(quoted.find('\n') == std::string::npos) << quoted;
  if (is_utf8) SHALE_CHECK(read.get<std::string>() == bytes) << quoted;
}

void CheckUtf8(absl::string_view bytes) {
  const size_t well_formed = WellFormedPrefix(bytes);
  SHALE_CHECK(IsUtf8(bytes) == (well_formed == bytes.size()));
  // Splits the input at every offset near the first invalid byte.
  for (size_t cut = well_formed < 4 ? 0 : well_formed - 4; cut <= well_formed + 4 && cut <= bytes.size(); ++cut) {
    CheckValidator(bytes.substr(0, cut), bytes.substr(cut), well_formed);
  }
  CheckStream(bytes, well_formed);
  CheckQuote(bytes, well_formed == bytes.size());
}

}  // namespace
}  // namespace shale

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  shale::CheckUtf8({reinterpret_cast<const char*>(data), size});
  return 0;
}
