// Every backend that the conformance suite runs on. A new backend adds one entry.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

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
  // Whether a token or target out of range is an error of the launch. A GPU has no way to return one: see kernels.h.
  bool reports_bad_indices = true;
};

// Those of every test program, then those that were registered.
const std::vector<TestBackend>& TestBackends();

// For a backend that a test program has besides: called while its globals are initialised. Returns true.
bool RegisterTestBackend(TestBackend backend);

}  // namespace shale::testing
