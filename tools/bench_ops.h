// bench_ops: every op against what the machine can do: those that move memory against a copy of memory, products and
// attention against the best rate of any product. A program says on which machines (bench_ops_main.cc).
#pragma once

#include <vector>

#include "tools/bench_ops_machine.h"

namespace shale {

// The tool's main. REQUIRES: kinds is not empty; the first is the default of --device.
int BenchOps(int argc, char** argv, const std::vector<OpsMachineKind>& kinds);

}  // namespace shale
