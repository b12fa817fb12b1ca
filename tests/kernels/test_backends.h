// Every backend that the conformance suite runs on. A library that a test program links registers each: see
// cpu_backends.cc, cuda_on_host_backend.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device/device.h"
#include "kernels/op_backend.h"

namespace shale::testing {

struct TestBackend {
  std::string name;
  // Backends of one family promise the same bits (a kernel on one thread and on two).
  std::string family;
  std::function<std::unique_ptr<Device>()> create_device;
  std::function<std::unique_ptr<Ops>()> create_ops;
  // Called before every launch; may be empty.
  std::function<void()> select;
  // Gives each buffer device memory of its own, which ends where the buffer does, so that tools which watch allocations
  // see what leaves it. The last pointer gives it back. Empty: an op's operands lie in one arena, between red zones.
  std::function<absl::StatusOr<std::shared_ptr<std::byte>>(Device&, int64_t size_bytes)> allocate = {};
  // Whether a token or target out of range is an error of the launch. A GPU has no way to return one: see kernels.h.
  bool reports_bad_indices = true;
  // Whether a NaN that is rounded to bf16 keeps its sign and the upper bits of its payload. A GPU makes it 0x7FFF.
  bool keeps_nans = true;
};

// The reference, then those that were registered.
const std::vector<TestBackend>& TestBackends();

// Called while a program's globals are initialised. Returns true.
bool RegisterTestBackend(TestBackend backend);

}  // namespace shale::testing
