// The threads, open files and resident memory of the test's process.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "tests/sanitizers.h"

namespace shale {

// A sanitizer's runtime keeps freed memory in quarantine and shadows all memory, so that the resident set says nothing
// about the engine.
inline bool ResidenceIsOurs() { return !HasSanitizer(); }

inline int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

inline int64_t Threads() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
}

// Files, sockets, pipes and events.
inline int64_t OpenDescriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
}

// A thread that was joined may be listed for a moment, so this waits until there are at most `most`. With a thread that
// stays, the test runs into its time limit here.
inline void AwaitThreads(int64_t most) {
  while (Threads() > most) std::this_thread::yield();
}

}  // namespace shale
