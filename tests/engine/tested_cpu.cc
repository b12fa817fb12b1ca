#include "engine/runtime/cpu_backend.h"
#include "tests/engine/tested_backend.h"

namespace shale::testing {

std::unique_ptr<Backend> TestedBackend(OpsKind ops, int threads) {
  return CreateCpuBackend({.ops = ops, .threads = threads});
}

bool TestsEveryCombination() { return true; }

}  // namespace shale::testing
