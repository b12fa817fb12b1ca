// Checks for well-formed UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF (Unicode, table 3-7).
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace shale {

// Checks a stream of bytes that arrives in pieces. A character may straddle pieces. Used by one thread.
class Utf8Validator {
 public:
  // Takes the next bytes. Returns false if an ill-formed sequence has been found; later calls then have no effect.
  bool Feed(absl::string_view bytes);
  // Ends the stream. Returns false if an ill-formed sequence was found or the stream ends inside a character.
  bool Finish();

  // Returns the offset of the ill-formed sequence from the first byte fed. REQUIRES: Feed or Finish returned false.
  int64_t error_offset() const { return character_offset_; }

 private:
  int64_t offset_ = 0;            // Bytes fed.
  int64_t character_offset_ = 0;  // Start of the character that pending_ belongs to.
  int pending_ = 0;               // Continuation bytes that have not come yet.
  uint8_t low_ = 0x80;            // low_ to high_ is the range of the next continuation byte.
  uint8_t high_ = 0xBF;
  bool failed_ = false;
};

bool IsUtf8(absl::string_view bytes);

// Returns the offset of the first byte that cannot be part of clean text, or npos if there is none. Clean text is
// well-formed UTF-8 without control characters other than tabs and line ends (LF, CR).
size_t FindNonText(absl::string_view bytes);

// Returns whether `bytes` are clean text without tabs and line ends.
bool IsLineOfText(absl::string_view bytes);

// Returns whether `bytes` are clean text without line ends. Tabs are rare in paths, and allowed.
bool IsLineOfPath(absl::string_view bytes);

}  // namespace shale
