// Lets the ops bench run on the CPU.
#pragma once

#include "tools/bench/ops_machine.h"

namespace shale {

// Returns the kind "cpu": ops on this machine's processors.
OpsMachineKind CpuOpsMachine();

}  // namespace shale
