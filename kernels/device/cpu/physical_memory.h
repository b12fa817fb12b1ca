#pragma once

#include <cstdint>

namespace shale {

// Returns the bytes of memory that this process can use at most: the machine's memory, or the limit of its control
// group if that is smaller. Swap does not count.
int64_t PhysicalMemoryBytes();

}  // namespace shale
