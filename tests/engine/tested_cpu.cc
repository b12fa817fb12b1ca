#include "engine/runtime/cpu_backend.h"
#include "tests/engine/tested_backend.h"

namespace shale::testing {

std::unique_ptr<Backend> TestedBackend(OpsKind ops, int threads) {
  return CreateCpuBackend({.ops = ops, .threads = [=](int64_t) { return threads; }});
}

bool TestsEveryCombination() { return true; }

}  // namespace shale::testing
