// The processors of this machine, for bench_ops.
#pragma once

#include "tools/bench_ops_machine.h"

namespace shale {

OpsMachineKind CpuOpsMachine();

}  // namespace shale
