#include "tests/kernels/test_backends.h"

#include <utility>

#include "hwy/targets.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/device/cpu/cpu_device.h"
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/cuda_on_host_ops.h"

namespace shale::testing {
namespace {

std::unique_ptr<Device> CpuForTests() { return CreateCpuDevice({.synchronous = true}); }

// Kernels choose their instruction set at each call, for the whole process: the best of `targets` that they were built
// for, or the portable one.
TestBackend FastCpu(std::string name, std::string family, int threads, int64_t targets) {
  return {.name = std::move(name),
          .family = std::move(family),
          .create_device = CpuForTests,
          .create_ops = [threads] { return CreateCpuOps({.threads = threads}); },
          .select = [targets] { hwy::GetChosenTarget().Update(targets); }};
}

std::vector<TestBackend>& Registered() {
  static auto& registered = *new std::vector<TestBackend>;
  return registered;
}

std::vector<TestBackend> MakeBackends() {
  std::vector<TestBackend> backends;
  backends.push_back(
      {.name = "reference", .family = "reference", .create_device = CpuForTests, .create_ops = CreateReferenceOps});
  backends.push_back({.name = "cuda_on_host",
                      .family = "cuda",
                      .create_device = CpuForTests,
                      .create_ops = CreateCudaOnHostOps,
                      .reports_bad_indices = false});
// libgomp is not instrumented: ThreadSanitizer would report its barriers as races.
#ifndef __SANITIZE_THREAD__
  const int64_t best = hwy::SupportedTargets();
  backends.push_back(FastCpu("cpu_threads1", "cpu", 1, best));
  backends.push_back(FastCpu("cpu_threads2", "cpu", 2, best));
  if ((best & HWY_AVX2) != 0) backends.push_back(FastCpu("cpu_avx2", "cpu_avx2", 1, HWY_AVX2));
  backends.push_back(FastCpu("cpu_portable", "cpu_portable", 1, 0));
#endif
  backends.insert(backends.end(), Registered().begin(), Registered().end());
  return backends;
}

}  // namespace

const std::vector<TestBackend>& TestBackends() {
  static const auto& backends = *new std::vector<TestBackend>(MakeBackends());
  return backends;
}

bool RegisterTestBackend(TestBackend backend) {
  Registered().push_back(std::move(backend));
  return true;
}

}  // namespace shale::testing
