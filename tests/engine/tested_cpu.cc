#include "engine/runtime/cpu_backend.h"
#include "tests/engine/tested_backend.h"

namespace shale::testing {

std::unique_ptr<Backend> TestedBackend(OpsKind ops, int threads, CpuProducts products) {
  return CreateCpuBackend({.ops = ops, .products = products, .threads = [=](int64_t) { return threads; }});
}

bool TestsEveryCombination() {
#ifdef __SANITIZE_THREAD__
  return false;  // All combinations take ten minutes there. One of each kind has the same streams, waits and threads.
#else
  return true;
#endif
}

}  // namespace shale::testing
