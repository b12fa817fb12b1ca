#include "tests/kernels/test_backends.h"

#include "kernels/cpu/cpu_ops.h"
#include "kernels/device/cpu/cpu_device.h"
#include "kernels/reference/reference_ops.h"

namespace shale::testing {
namespace {

std::unique_ptr<Device> CpuForTests() { return CreateCpuDevice({.synchronous = true}); }

TestBackend FastCpu(int threads) {
  return {.name = "cpu_threads" + std::to_string(threads),
          .family = "cpu",
          .create_device = CpuForTests,
          .create_ops = [threads] { return CreateCpuOps({.threads = threads}); }};
}

std::vector<TestBackend> MakeBackends() {
  std::vector<TestBackend> backends;
  backends.push_back(
      {.name = "reference", .family = "reference", .create_device = CpuForTests, .create_ops = CreateReferenceOps});
// libgomp is not instrumented: ThreadSanitizer would report its barriers as races.
#ifndef __SANITIZE_THREAD__
  backends.push_back(FastCpu(1));
  backends.push_back(FastCpu(2));
#endif
  return backends;
}

}  // namespace

const std::vector<TestBackend>& TestBackends() {
  static const auto& backends = *new std::vector<TestBackend>(MakeBackends());
  return backends;
}

}  // namespace shale::testing
