// The resident memory of the test's process.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace shale {

// A sanitizer's runtime keeps freed memory in quarantine and shadows all memory, so that the resident set says nothing
// about the engine.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kResidenceIsOurs = false;
#else
inline constexpr bool kResidenceIsOurs = true;
#endif

inline int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace shale
