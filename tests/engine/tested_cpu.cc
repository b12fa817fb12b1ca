#include <cstdlib>

#include "engine/run/backends/cpu_backend.h"
#include "tests/engine/tested_backend.h"

namespace shale::testing {

std::unique_ptr<Backend> TestedBackend(OpsKind ops, int threads, CpuMatMuls cpu_matmuls) {
  return CreateCpuBackend({.ops = ops, .cpu_matmuls = cpu_matmuls, .threads = [=](int64_t) { return threads; }});
}

bool TestsTheCudaBackend() { return false; }

// All combinations take minutes, more with sanitizers. One of each kind has the same streams, waits, threads and kinds
// of buffers.
bool TestsEveryCombination() { return std::getenv("SHALE_TEST_EVERYTHING") != nullptr; }

}  // namespace shale::testing
