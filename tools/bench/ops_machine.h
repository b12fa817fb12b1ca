// The interface of the machines that the ops bench measures: the CPU or a GPU.
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

// The names of a kind of copy that ops are compared with.
struct CopyWords {
  std::string about;   // For the sentence about the speed of copies, such as "plain".
  std::string column;  // The title of the column with an op's ratio, such as "of copy".
  std::string json;    // The key in JSON, such as "of_copy".
};

// A device with ops and two kinds of memory copies. Must be used by one thread.
class OpsMachine {
 public:
  virtual ~OpsMachine() = default;

  virtual std::string name() const = 0;  // The product's name, such as "NVIDIA H200".
  virtual Device& device() = 0;
  virtual Ops& ops() = 0;
  // Returns whether the host may write memory that the device allocates.
  virtual bool host_memory() const = 0;
  // Returns the ratio to the first kind of copy that an op should reach.
  virtual double target() const = 0;

  virtual std::array<CopyWords, 2> copies() const = 0;
  // Returns the size of the copies of that kind that an op moving `op_bytes` is compared with. The result is at most
  // `buffer_bytes`, and a multiple of 64.
  virtual int64_t CopyBytes(int kind, int64_t buffer_bytes, double op_bytes) const = 0;
  virtual absl::Status EnqueueCopy(int kind, std::byte* to, const std::byte* from, int64_t size_bytes,
                                   Stream& stream) = 0;

  // Returns how many calls of this length to time as one sample. The result is more than one if recording the time is
  // slow. Then each sample follows a copy of a full buffer, during which the host enqueues the sample's calls.
  virtual int64_t CallsTogether(double seconds) const { return 1; }
};

struct OpsMachineOptions {
  int threads = 1;             // Threads of the CPU's ops.
  std::string tuning_table;    // File with tuned matmul algorithms for a GPU; empty for none.
  bool own_attention = false;  // Whether the engine's own kernels compute attention on a GPU where cuDNN could.
};

// A kind of machine that the program was built for. `device` is its name in --device.
struct OpsMachineKind {
  std::string device;
  std::function<absl::StatusOr<std::unique_ptr<OpsMachine>>(const OpsMachineOptions&)> create;
};

}  // namespace shale
