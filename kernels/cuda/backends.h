// Interfaces to the libraries of the CUDA backend. The libraries compute matmuls, and attention where they are faster
// than Shale's own kernels.
//
// Only the rank's launching thread may call them. Enqueue starts a bound and valid op on `stream` and owns nothing;
// `scratch` is device memory of ScratchBytes(op) bytes with arbitrary contents.
#pragma once

#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/device/cuda/handles.h"
#include "kernels/op.h"
#include "kernels/op_backend.h"

namespace shale {
struct MatMul;             // kernels/ops/matmul.h
struct AttentionForward;   // kernels/ops/attention.h
struct AttentionBackward;  // kernels/ops/attention.h
}  // namespace shale

namespace shale::cuda {

class MatMulBackend {
 public:
  virtual ~MatMulBackend() = default;
  // Returns the bytes of scratch that `op` needs. `op` may be symbolic.
  virtual int64_t ScratchBytes(const MatMul& op) const = 0;
  // Chooses an algorithm, once per kind of matmul.
  virtual absl::Status Prepare(const MatMul& op) = 0;
  virtual absl::Status Enqueue(const MatMul& op, Scratch scratch, StreamHandle stream) = 0;
};

class AttentionBackend {
 public:
  virtual ~AttentionBackend() = default;
  // Returns whether the library computes such an op. The answer depends on how the backend was created and on shapes,
  // strides, dtypes and the alignment of operands only, and is the same for a symbolic op. Shale's own kernels compute
  // an op that the library does not take. The library may take one direction only, because lse is the same in both
  // implementations.
  virtual bool Takes(const AttentionForward& op) const = 0;
  virtual bool Takes(const AttentionBackward& op) const = 0;
  virtual int64_t ScratchBytes(const AttentionForward& op) const = 0;
  virtual int64_t ScratchBytes(const AttentionBackward& op) const = 0;
  // See Ops::AmpleScratchBytes and Ops::Prepare.
  virtual int64_t AmpleScratchBytes(const AttentionBackward& op, int64_t most_bytes) const { return ScratchBytes(op); }
  virtual absl::Status Prepare(const AttentionForward& op, int64_t scratch_bytes) = 0;
  virtual absl::Status Prepare(const AttentionBackward& op, int64_t scratch_bytes) = 0;
  virtual absl::Status Enqueue(const AttentionForward& op, Scratch scratch, StreamHandle stream) = 0;
  virtual absl::Status Enqueue(const AttentionBackward& op, Scratch scratch, StreamHandle stream) = 0;
};

template <class OpType>
concept AttentionOp = std::is_same_v<OpType, AttentionForward> || std::is_same_v<OpType, AttentionBackward>;

// Returns whether the library computes `op`, and not Shale's own kernels. These compute every attention if there is no
// library, that is, if `library` is null.
template <AttentionOp OpType>
bool IsByLibrary(const AttentionBackend* library, const OpType& op) {
  return library != nullptr && library->Takes(op);
}

// Implements Ops::KernelsOf for a GPU on which IsByLibrary decides who computes attention. `library` may be null.
absl::string_view KernelsOfAttention(const AttentionBackend* library, const Op& op);

}  // namespace shale::cuda
