#pragma once

#include <cstdint>

namespace shale {

// Bytes of memory that this process may hope for: the machine's, or the limit of its control group when that is
// smaller. Swap does not count.
int64_t PhysicalMemoryBytes();

}  // namespace shale
