// UTF-8: checks for well-formed text (no overlong forms, no surrogates, nothing above U+10FFFF; Unicode, table 3-7),
// and turns a stream of bytes into complete characters (Utf8Stream).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

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

// Returns every character as soon as it is complete. A terminal needs UTF-8, but a model may produce other bytes:
// U+FFFD takes the place of bytes that cannot become a character, once for each maximal prefix of a character. Used by
// one thread.
class Utf8Stream {
 public:
  // Adds `byte`, and returns what can be shown now, which is often empty.
  std::string Push(uint8_t byte);
  // Ends the stream. Returns U+FFFD if a character is incomplete, else nothing.
  std::string Finish();

 private:
  std::string pending_;  // The prefix of a character; at most 3 bytes between calls.
};

}  // namespace shale
