#include "kernels/device/cpu/physical_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace shale {

int64_t PhysicalMemoryBytes() {
  int64_t bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  // Control groups, versions 2 and 1. A file that says "max" or does not exist sets no limit.
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::ifstream file(path);
    int64_t limit = 0;
    if (file >> limit && limit > 0) bytes = std::min(bytes, limit);
  }
  return bytes;
}

}  // namespace shale
