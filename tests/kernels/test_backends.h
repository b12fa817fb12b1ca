// The backends that the conformance suite runs on. A library that the test program links registers each of them: see
// cpu_backends.cc and cuda_on_host_backend.cc.
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
  // Allocates device memory for one buffer. The memory ends where the buffer does, so that tools that watch allocations
  // see accesses past its end. It is freed with the last pointer. If empty, an op's operands lie in one arena, between
  // red zones.
  std::function<absl::StatusOr<std::shared_ptr<std::byte>>(Device&, int64_t size_bytes)> allocate = {};
  // Whether a token or target out of range is an error of the launch. A GPU has no way to return one: see kernels.h.
  bool reports_bad_indices = true;
  // Whether a NaN that is rounded to bf16 keeps its sign and the upper bits of its payload. A GPU makes it 0x7FFF.
  bool keeps_nans = true;
};

// Returns the reference backend, then the registered ones.
const std::vector<TestBackend>& TestBackends();

// Registers a backend and returns true. REQUIRES: called while the program's globals are initialized.
bool RegisterTestBackend(TestBackend backend);

}  // namespace shale::testing
