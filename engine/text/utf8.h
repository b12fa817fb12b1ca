// Checks for well-formed UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF (Unicode, table 3-7).
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace shale {

// Checks a stream that arrives in pieces; a character may straddle two of them. Used by one thread.
class Utf8Validator {
 public:
  // Takes the next bytes. Returns false once an ill-formed sequence has been found; later calls have no effect then.
  bool Feed(absl::string_view bytes);
  // Ends the stream. Returns false if an ill-formed sequence was found or the stream ends inside a character.
  bool Finish();

  // Returns the offset of the ill-formed sequence from the first byte fed. REQUIRES: Feed or Finish returned false.
  int64_t error_offset() const { return character_offset_; }

 private:
  int64_t offset_ = 0;            // Bytes fed.
  int64_t character_offset_ = 0;  // Start of the character that pending_ belongs to.
  int pending_ = 0;               // Continuation bytes still to come.
  uint8_t low_ = 0x80;            // Range of the next continuation byte.
  uint8_t high_ = 0xBF;
  bool failed_ = false;
};

bool IsUtf8(absl::string_view bytes);

// Returns the offset of the first byte that cannot be part of clean text, npos if there is none. Clean text is
// well-formed UTF-8 without control characters other than tab and line ends.
size_t FindNonText(absl::string_view bytes);

// Returns whether `bytes` are clean text without tabs and line ends.
bool IsLineOfText(absl::string_view bytes);

}  // namespace shale
