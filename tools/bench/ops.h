// The ops bench. Compares ops that move memory with a copy of memory, and matmuls and attention with the best rate of
// any matmul. The program passes the kinds of machines (ops_main.cc).
#pragma once

#include <vector>

#include "tools/bench/ops_machine.h"

namespace shale {

// Runs the tool and returns its exit code. The first of `kinds` is the default of --device. REQUIRES: kinds is not
// empty.
int BenchOps(int argc, char** argv, const std::vector<OpsMachineKind>& kinds);

}  // namespace shale
