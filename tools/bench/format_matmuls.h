// Rates of matmuls with operands in bf16 and in 8-bit formats, through cuBLASLt.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/cublaslt/functions.h"
#include "kernels/cuda/cublaslt/matmul_plan.h"
#include "kernels/device/cuda/cuda_device.h"
#include "kernels/device/cuda/turn_timer.h"
#include "kernels/dtype.h"
#include "kernels/float8_scales.h"
#include "kernels/ops/matmul.h"

namespace shale {

// How c [M, N] = a [M, K] b [N, K]^T is computed. In this form alone GPUs multiply 8-bit operands.
struct FormatMatMul {
  DType a = DType::kBFloat16, b = DType::kBFloat16;
  // Adds products of 8-bit operands in the registers of the tensor cores, with fewer bits than fp32 has.
  bool fast_accumulation = false;
  // A scale for each tile or block of 8-bit operands (Float8Scales): blocks of b where c is bf16, as in forward and in
  // gradients of inputs, and tiles of both operands where c is fp32, as in gradients of weights.
  bool blockwise = false;
  std::string ToString() const;  // "bf16", "e5m2 x e4m3, fast", "e4m3 x e4m3, blockwise"
};

struct FormatRate {
  FormatMatMul matmul;
  double seconds = 0;   // The median of the rounds, of one launch. 0: not measured.
  std::string why_not;  // Why it was not measured.
};

// Measures the formats of one size side by side (TurnTimer). Only the launching thread of `device` may use it. Borrows
// the runtime and the device.
class FormatMatMuls {
 public:
  static absl::StatusOr<std::unique_ptr<FormatMatMuls>> Create(CudaRuntime& runtime, CudaDevice& device,
                                                               const cuda::CublasLtFunctions& functions);
  ~FormatMatMuls();

  // Returns the rates of bf16, and of 8-bit operands as in training: both in E4M3, and E5M2 (gradients) with E4M3, each
  // with and without fast accumulation, and blockwise. c has `c_dtype`. A format that the library does not multiply
  // says why not.
  absl::StatusOr<std::vector<FormatRate>> Measure(int64_t m, int64_t n, int64_t k, DType c_dtype, int rounds,
                                                  int launches);

 private:
  FormatMatMuls(CudaDevice& device, const cuda::CublasLtFunctions& functions, TurnTimer timer)
      : device_(device), functions_(functions), timer_(std::move(timer)) {}
  // Returns memory for a matrix, with ordinary numbers of its dtype, since a matmul of zeros draws less power.
  absl::StatusOr<std::unique_ptr<Arena>> Filled(DType dtype, int64_t elements);
  // Sets the scales of 8-bit operands. Adds the memory of those of tiles and blocks to `arenas`.
  absl::Status SetScales(const FormatMatMul& format, MatMul& op, std::vector<std::unique_ptr<Arena>>& arenas);
  // Returns a plan with the algorithm that the library proposes first.
  absl::StatusOr<std::unique_ptr<cuda::MatMulPlan>> PlanOf(const MatMul& op) const;

  CudaDevice& device_;
  const cuda::CublasLtFunctions functions_;
  TurnTimer timer_;
  std::unique_ptr<Arena> workspace_, scales_;  // The scales are two ones.
  cublasLtHandle_t handle_ = nullptr;
};

}  // namespace shale
