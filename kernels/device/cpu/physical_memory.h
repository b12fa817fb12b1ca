#pragma once

#include <cstdint>

namespace shale {

// Returns how many bytes of memory this process can use at most: the machine's memory, or the limit of the process's
// control group if that is smaller. Swap does not count.
int64_t PhysicalMemoryBytes();

}  // namespace shale
