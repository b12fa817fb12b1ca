// Tuner: times the algorithms that cuBLASLt has for a matmul on this GPU, to fill the tuning table.
//
// The candidates are the library's proposals, and what differs from them in tile and in how often it splits K
// (MatMulPlan::Variants): algorithms whose sums have one order, so that results repeat their bits. A first pass runs
// each candidate a few times and keeps the fastest. These then take turns on a GPU that is as hot as in a step
// (TurnTimer), and the medians of their rounds decide.
//
// Operands have ordinary values. Launches of a round read the same ones, so that small operands stay in the L2 cache.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/cublaslt/functions.h"
#include "kernels/cuda/cublaslt/matmul_key.h"
#include "kernels/cuda/cublaslt/matmul_plan.h"
#include "kernels/cuda/cublaslt/tuning_table.h"
#include "kernels/device/cuda/cuda_device.h"
#include "kernels/device/cuda/turn_timer.h"

namespace shale::cuda {

struct TunerOptions {
  int64_t workspace_bytes = kMatMulWorkspaceBytes;  // The most that an algorithm may use.
  bool allow_tf32 = false;
  int candidates = 16;  // Number of the library's proposals to time, at most.
  int variants = 256;   // Number of variants of them to time, at most.
  int finalists = 8;    // Number of algorithms that are timed in rounds, the library's first proposal included.
  int rounds = 5;
  int launches = 20;  // Of each finalist in a round.
};

struct TunedMatMul {
  MatMulKey key;
  MatMulAlgorithm algorithm = {};  // The fastest.
  double seconds = 0;              // Of the fastest: of one launch.
  double first_seconds = 0;        // Of the first proposal that ran, which is used without a table.
  int timed = 0;                   // Number of algorithms that ran.
};

// Only the launching thread of `device` may use a Tuner. Borrows the runtime and the device, which must outlive it.
class Tuner {
 public:
  // Allocates device memory for operands of up to `operand_bytes` in all and for the workspace.
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
  struct Candidate {
    MatMulAlgorithm algorithm = {};
    double seconds = 0;
  };

  Tuner(CudaDevice& device, const CublasLtFunctions& functions, const TunerOptions& options, TurnTimer timer)
      : device_(device), functions_(functions), options_(options), timer_(std::move(timer)) {}
  // Fills the memory of operands with values for fp8 or for other dtypes, unless it has them.
  absl::Status Fill(bool float8);
  // Returns what launches `bound` with `algorithm`. Both must outlive it.
  Contestant ContestantOf(MatMulPlan& plan, const MatMul& bound, const MatMulAlgorithm& algorithm) const;
  // Returns the algorithms that run, with a first impression of their times, the fastest first. The first of
  // `algorithms` that runs comes before all others.
  absl::StatusOr<std::vector<Candidate>> Screen(MatMulPlan& plan, const MatMul& bound,
                                                const std::vector<MatMulAlgorithm>& algorithms, absl::Status& refusal);

  CudaDevice& device_;
  const CublasLtFunctions functions_;
  const TunerOptions options_;
  TurnTimer timer_;
  std::unique_ptr<Arena> operands_, workspace_;
  std::optional<bool> filled_for_float8_;
  cublasLtHandle_t handle_ = nullptr;
};

}  // namespace shale::cuda
