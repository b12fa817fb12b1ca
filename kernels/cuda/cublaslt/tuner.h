// Tuner: times the algorithms that cuBLASLt has for a matmul on this GPU, to fill the tuning table.
//
// It times matmuls as a step runs them: one after another on a stream, with operands that have ordinary values and are
// not in the L2 cache, and with a fixed workspace. The time of an algorithm is the median of its repetitions, each
// measured between two events of the stream.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/cublaslt/functions.h"
#include "kernels/cuda/cublaslt/matmul_key.h"
#include "kernels/cuda/cublaslt/tuning_table.h"
#include "kernels/device/cuda/cuda_device.h"
#include "kernels/device/cuda/cuda_event.h"
#include "kernels/device/cuda/handles.h"

namespace shale::cuda {

struct TunerOptions {
  int64_t workspace_bytes = int64_t{32} << 20;  // The most that an algorithm may use; as in CublasLtMatMulOptions.
  bool allow_tf32 = false;
  int candidates = 16;   // Number of the library's proposals to time, at most.
  int repetitions = 20;  // Per algorithm, after two warm-up runs that are not counted.
  // Bytes to write before each repetition, so that no operand stays in the L2 cache. 0: none.
  int64_t flush_bytes = int64_t{256} << 20;
};

struct TunedMatMul {
  MatMulKey key;
  MatMulAlgorithm algorithm = {};  // The fastest.
  double seconds = 0;              // Of the fastest.
  double first_seconds = 0;        // Of the first proposal that ran, which is used without a table.
  int timed = 0;                   // Number of algorithms that were timed.
};

// Only the launching thread of `device` may use a Tuner. Borrows the runtime and the device, which must outlive it.
class Tuner {
 public:
  // Allocates device memory for operands of up to `operand_bytes` in all, for the workspace and for flushing the cache.
  static absl::StatusOr<std::unique_ptr<Tuner>> Create(CudaRuntime& runtime, CudaDevice& device,
                                                       const CublasLtFunctions& functions, int64_t operand_bytes,
                                                       const TunerOptions& options);
  ~Tuner();

  // Returns the bytes that the operands of `op` take in the tuner's memory. `op` may be symbolic.
  static int64_t OperandBytes(const MatMul& op);

  // Returns the fastest algorithm for `op`. Skips algorithms that the library proposes and then refuses. Returns
  // Unimplemented if none remains. REQUIRES: OperandBytes(op) <= operand_bytes
  absl::StatusOr<TunedMatMul> Tune(const MatMul& op);

 private:
  Tuner(CudaRuntime& runtime, const CublasLtFunctions& functions, const TunerOptions& options)
      : runtime_(runtime), functions_(functions), options_(options) {}
  // Returns the median seconds of `enqueue`. If it fails, returns nullopt and stores its error in `refusal`.
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
