// How much a process reads from files.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

namespace shale {

// Returns how many bytes this process has read from files so far.
inline int64_t BytesRead() {
  std::ifstream io("/proc/self/io");
  std::string field;
  int64_t bytes = -1;
  io >> field >> bytes;
  return field == "rchar:" ? bytes : -1;
}

}  // namespace shale
