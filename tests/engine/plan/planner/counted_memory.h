// Counts the memory that the calling thread holds. A program that links this replaces operator new and delete.
#pragma once

#include <cstdint>

namespace shale {

// Begins to count at 0. Memory that other threads free does not count.
void CountMemory();
// Returns the largest number of bytes that the thread held at once since CountMemory, beyond what it held then.
int64_t MostCountedBytes();

}  // namespace shale
