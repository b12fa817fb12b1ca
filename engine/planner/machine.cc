#include "engine/planner/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <thread>

#include "absl/strings/numbers.h"

namespace shale {
namespace {

// A limit in a file of the control group file system; 0: there is none ("max", or no such file).
int64_t ReadLimit(const char* path) {
  std::ifstream file(path);
  std::string word;
  int64_t bytes = 0;
  if (!(file >> word) || !absl::SimpleAtoi(word, &bytes)) return 0;
  return std::max<int64_t>(bytes, 0);
}

}  // namespace

int64_t MachineMemoryBytes() {
  int64_t bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  // A container sees its own group at the root of the file system: version 2, then version 1.
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    if (const int64_t limit = ReadLimit(path); limit > 0) bytes = std::min(bytes, limit);
  }
  return bytes;
}

int MachineCores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace shale
