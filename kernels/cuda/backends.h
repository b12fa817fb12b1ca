// What libraries compute for the CUDA backend: matrix products, and attention where they are faster than our kernels.
//
// Used by the rank's launching thread. Enqueue starts a bound and valid op on `stream` and owns nothing; `scratch` is
// device memory of ScratchBytes(op) bytes, whatever it holds.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/device/cuda/handles.h"
#include "kernels/op_backend.h"
#include "kernels/ops.h"

namespace shale::cuda {

class ProductBackend {
 public:
  virtual ~ProductBackend() = default;
  // From shapes and dtypes alone.
  virtual int64_t ScratchBytes(const MatMul& op) const = 0;
  // Chooses an algorithm, once per kind of product.
  virtual absl::Status Prepare(const MatMul& op) = 0;
  virtual absl::Status Enqueue(const MatMul& op, Scratch scratch, StreamHandle stream) = 0;
};

class AttentionBackend {
 public:
  virtual ~AttentionBackend() = default;
  // Whether it computes such an op, from shapes and dtypes alone. One that it does not take goes to our kernels; the
  // other direction need not, for lse is the same in both.
  virtual bool Takes(const AttentionForward& op) const = 0;
  virtual bool Takes(const AttentionBackward& op) const = 0;
  virtual int64_t ScratchBytes(const AttentionForward& op) const = 0;
  virtual int64_t ScratchBytes(const AttentionBackward& op) const = 0;
  virtual absl::Status Prepare(const AttentionForward& op) = 0;
  virtual absl::Status Prepare(const AttentionBackward& op) = 0;
  virtual absl::Status Enqueue(const AttentionForward& op, Scratch scratch, StreamHandle stream) = 0;
  virtual absl::Status Enqueue(const AttentionBackward& op, Scratch scratch, StreamHandle stream) = 0;
};

}  // namespace shale::cuda
