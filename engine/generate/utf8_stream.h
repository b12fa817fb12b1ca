// Bytes in, whole characters out.
#pragma once

#include <cstdint>
#include <string>

namespace shale {

// What a model of bytes produces need not be UTF-8; a terminal wants nothing else. Characters come out when they are
// complete; what can become none comes out as U+FFFD, once for each longest beginning of a character. One thread.
class Utf8Stream {
 public:
  // What can be shown now that `byte` is known; often empty.
  std::string Push(uint8_t byte);
  // At the end: U+FFFD if a character is incomplete, else nothing.
  std::string Finish();

 private:
  std::string pending_;  // The beginning of a character; at most 3 bytes between calls.
};

}  // namespace shale
