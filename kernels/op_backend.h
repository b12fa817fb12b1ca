// Ops: the interface that runs ops on one kind of device.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/device/device.h"
#include "kernels/ops.h"

namespace shale {

// Memory that a launch may use and leave dirty, 256-byte aligned.
struct Scratch {
  std::byte* data = nullptr;
  int64_t size_bytes = 0;
};

// One per rank: used by the rank's launching thread, and by its streams' threads through what it enqueues.
class Ops {
 public:
  virtual ~Ops() = default;

  // Bytes of scratch that `op` needs, from all but its operands' addresses (symbolic ops are fine).
  virtual int64_t ScratchBytes(const Op& op) const = 0;

  // Bytes of packed_b for this product; 0: it has no use for one. Products with the same b, transpose_b and dtype, of
  // whatever M, that have a use for one agree on its bytes.
  virtual int64_t PackedBytes(const MatMul& op) const { return 0; }

  // Does what costs time at the first launch of such an op (creating a primitive, choosing an algorithm).
  virtual absl::Status Prepare(const Op& op) { return absl::OkStatus(); }

  // Enqueues a bound and valid op (see Validate). Scratch must not be used by anything else until the op has finished.
  absl::Status Launch(const Op& op, Scratch scratch, Stream& stream) {
    VisitOperands(op, [&](absl::string_view, const Tensor& t, Access) {
      if (t.present()) stream.Meter(t.data, t.extent_bytes());
    });
    stream.Meter(scratch.data, scratch.size_bytes);
    return Enqueue(op, scratch, stream);
  }

 protected:
  virtual absl::Status Enqueue(const Op& op, Scratch scratch, Stream& stream) = 0;
};

}  // namespace shale
