#include "engine/runtime/cpu_backend.h"
#include "tests/engine/tested_backend.h"

namespace shale::testing {

std::unique_ptr<Backend> TestedBackend(OpsKind ops, int threads, CpuProducts products) {
  return CreateCpuBackend({.ops = ops, .products = products, .threads = [=](int64_t) { return threads; }});
}

bool TestsTheCudaBackend() { return false; }

bool TestsEveryCombination() {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  // All combinations take minutes there. One of each kind has the same streams, waits, threads and kinds of buffers.
  return false;
#else
  return true;
#endif
}

}  // namespace shale::testing
