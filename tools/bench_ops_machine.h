// What bench_ops measures on: processors or a GPU.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device/device.h"
#include "kernels/op_backend.h"

namespace shale {

// A kind of copy that ops are held against.
struct CopyWords {
  std::string about;   // "plain", in the sentence that says what copies reach.
  std::string column;  // "of copy", over an op's ratio.
  std::string json;    // "of_copy", its name there.
};

// One thread.
class OpsMachine {
 public:
  virtual ~OpsMachine() = default;

  virtual std::string name() const = 0;  // "NVIDIA H200", as people know it.
  virtual Device& device() = 0;
  virtual Ops& ops() = 0;
  // Whether the host may write what the device allocates.
  virtual bool host_memory() const = 0;
  // The ratio to the first kind of copy that an op should reach.
  virtual double target() const = 0;

  virtual std::array<CopyWords, 2> copies() const = 0;
  // What a copy of that kind reads, of buffers of `buffer_bytes`, beside an op that moves `op_bytes`. A multiple of 64.
  virtual int64_t CopyBytes(int kind, int64_t buffer_bytes, double op_bytes) const = 0;
  virtual absl::Status EnqueueCopy(int kind, std::byte* to, const std::byte* from, int64_t size_bytes,
                                   Stream& stream) = 0;

  // Calls of so many seconds each that are timed as one. More than one where noting the time costs time itself; then
  // each such group follows a copy of a whole buffer, during which the host gets ahead of the device.
  virtual int64_t CallsTogether(double seconds) const { return 1; }
};

struct OpsMachineOptions {
  int threads = 1;           // Of ops on processors.
  std::string tuning_table;  // Of matrix products on a GPU; empty: none.
};

// A machine that the program was built for, by the name that --device gives it.
struct OpsMachineKind {
  std::string device;
  std::function<absl::StatusOr<std::unique_ptr<OpsMachine>>(const OpsMachineOptions&)> create;
};

}  // namespace shale
