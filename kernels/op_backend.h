// Ops: the interface that runs ops on one kind of device.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/device/device.h"
#include "kernels/op.h"

namespace shale {

struct MatMul;  // kernels/ops/matmul.h

// Whose kernels compute an attention on a GPU (Ops::KernelsOf): a library's, or Shale's own.
inline constexpr absl::string_view kCudnnKernels = "cuDNN", kOwnKernels = "own";

// Memory that one launch may overwrite, aligned to 256 bytes. Its contents are undefined before and after the launch.
struct Scratch {
  std::byte* data = nullptr;
  int64_t size_bytes = 0;
};

// Runs ops on one kind of device. Each rank has its own Ops. Only the rank's launching thread may call it; enqueued
// work uses it on the threads of the rank's streams.
class Ops {
 public:
  virtual ~Ops() = default;

  // Returns the bytes of scratch that `op` needs. The result does not depend on the addresses of operands, so `op` may
  // be symbolic.
  virtual int64_t ScratchBytes(const Op& op) const = 0;
  // Returns the bytes of scratch with which `op` is fastest: at least ScratchBytes(op), and otherwise at most
  // `most_bytes`. A launch computes the same bits with any scratch from ScratchBytes(op) to this size.
  virtual int64_t AmpleScratchBytes(const Op& op, int64_t most_bytes) const { return ScratchBytes(op); }

  // Returns the size of packed_b in bytes for this matmul, or 0 if the device does not use packed_b for it. Matmuls
  // that use it and have the same b, transpose_b and dtype return the same size, whatever their M.
  virtual int64_t PackedBytes(const MatMul& op) const { return 0; }

  // Returns whose kernels compute `op`: kCudnnKernels or kOwnKernels for attention on a GPU. Returns "" for ops that
  // always have the same kernels. The result is a literal.
  virtual absl::string_view KernelsOf(const Op& op) const { return ""; }

  // Returns Unimplemented, naming the operands, if the device has no kernel for a combination of dtypes that Validate
  // admits. `op` may be symbolic.
  virtual absl::Status CheckAvailable(const Op& op) const { return absl::OkStatus(); }

  // Does the slow work of the first launch of such an op with this much scratch, at least ScratchBytes(op), in advance:
  // creates a primitive or chooses an algorithm.
  virtual absl::Status Prepare(const Op& op, int64_t scratch_bytes) { return absl::OkStatus(); }

  // Returns the ops that compute in host memory, on any stream of the device (Stream::RunOnHost): these ops themselves
  // if their device is the host. Returns null if there are none.
  virtual const Ops* host() const { return nullptr; }
  Ops* host() { return const_cast<Ops*>(static_cast<const Ops*>(this)->host()); }

  // Enqueues a bound and valid op (see Validate), or returns the error of CheckAvailable. Enters the memory that the op
  // uses in the stream's meter (MemoryMeter). Nothing else may use `scratch` until the op has finished.
  absl::Status Launch(const Op& op, Scratch scratch, Stream& stream);

 protected:
  // Enqueues the op. Launch has checked it and entered its memory in the meter.
  virtual absl::Status Enqueue(const Op& op, Scratch scratch, Stream& stream) = 0;
};

// Returns the error of CheckAvailable on a device that multiplies only matrices of one dtype, or of fp8 formats.
absl::Status CheckOneDTypeOfMatrices(absl::string_view device, const Op& op);

}  // namespace shale
