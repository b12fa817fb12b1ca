// Tuner: times the algorithms that cuBLASLt has for a product, on this GPU, for the tuning table.
//
// What is timed is what a step does: one product after another on a stream, with operands that the L2 cache no longer
// holds, of ordinary values, in a fixed workspace. An algorithm's time is the median of its repetitions, between two
// events of the stream.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/cublaslt/functions.h"
#include "kernels/cuda/cublaslt/product_key.h"
#include "kernels/cuda/cublaslt/tuning_table.h"
#include "kernels/device/cuda/cuda_device.h"
#include "kernels/device/cuda/cuda_event.h"
#include "kernels/device/cuda/handles.h"
#include "kernels/ops.h"

namespace shale::cuda {

struct TunerOptions {
  int64_t workspace_bytes = int64_t{32} << 20;  // As CublasLtProductOptions has it: an algorithm may not want more.
  bool allow_tf32 = false;
  int candidates = 16;   // At most so many of the library's proposals are timed.
  int repetitions = 20;  // Of each, after two that are not counted.
  // Written before each repetition, so that the L2 cache holds nothing of the operands; 0: nothing is.
  int64_t flush_bytes = int64_t{256} << 20;
};

struct TunedProduct {
  ProductKey key;
  ProductAlgorithm algorithm = {};  // The fastest.
  double seconds = 0;               // Of the fastest.
  double first_seconds = 0;         // Of the library's first proposal, which is used without a table.
  int timed = 0;                    // Algorithms that were.
};

// On the launching thread of `device`. Borrows the runtime and the device.
class Tuner {
 public:
  // Memory of the device for operands of up to `operand_bytes` in all.
  static absl::StatusOr<std::unique_ptr<Tuner>> Create(CudaRuntime& runtime, CudaDevice& device,
                                                       const CublasLtFunctions& functions, int64_t operand_bytes,
                                                       const TunerOptions& options);
  ~Tuner();

  // Bytes of memory that the operands of `op`, which may be symbolic, take here.
  static int64_t OperandBytes(const MatMul& op);

  // REQUIRES: OperandBytes(op) <= operand_bytes. Unimplemented when no algorithm computes it; one that the library
  // proposes and then refuses is passed over.
  absl::StatusOr<TunedProduct> Tune(const MatMul& op);

 private:
  Tuner(CudaRuntime& runtime, const CublasLtFunctions& functions, const TunerOptions& options)
      : runtime_(runtime), functions_(functions), options_(options) {}
  // Seconds; nothing if `enqueue` fails, which is then `refusal`.
  absl::StatusOr<std::optional<double>> Time(const std::function<absl::Status(StreamHandle)>& enqueue,
                                             absl::Status& refusal);

  CudaRuntime& runtime_;
  const CublasLtFunctions functions_;
  const TunerOptions options_;
  std::unique_ptr<Arena> operands_, workspace_, flushed_;
  std::unique_ptr<Stream> stream_;
  CudaEventHandle begin_, end_;
  cublasLtHandle_t handle_ = nullptr;
};

}  // namespace shale::cuda
