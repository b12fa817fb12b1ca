// The machine that a program is planned for when the job does not say.
#pragma once

#include <cstdint>

namespace shale {

// Memory that processes may use: what is installed, or the limit of this process's control group if that is less.
int64_t MachineMemoryBytes();

// Processors that this process may run on, at least 1.
int MachineCores();

}  // namespace shale
