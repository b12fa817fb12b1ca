// The number of hardware threads of this machine.
#pragma once

#include <cstdint>
#include <thread>

namespace shale {

// Returns how many threads the CPUs of this machine run at once, or 0 if the system does not tell.
inline int64_t HardwareThreads() { return std::thread::hardware_concurrency(); }

}  // namespace shale
