#include "tests/kernels/test_backends.h"

#include <utility>

#include "kernels/device/cpu/cpu_device.h"
#include "kernels/reference/reference_ops.h"

namespace shale::testing {
namespace {

std::vector<TestBackend>& Registered() {
  static auto& registered = *new std::vector<TestBackend>;
  return registered;
}

std::vector<TestBackend> MakeBackends() {
  std::vector<TestBackend> backends = {{.name = "reference",
                                        .family = "reference",
                                        .create_device = [] { return CreateCpuDevice({.synchronous = true}); },
                                        .create_ops = CreateReferenceOps}};
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
