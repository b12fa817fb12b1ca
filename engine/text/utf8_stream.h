// Turns a stream of bytes into complete UTF-8 characters.
#pragma once

#include <cstdint>
#include <string>

namespace shale {

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
