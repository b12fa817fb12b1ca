#include "kernels/cuda/availability.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/op_backend.h"
#include "kernels/ops/matmul.h"

namespace shale::cuda {

absl::Status CheckAvailableOn(const ComputeCapability& gpu, const Op& op) {
  const auto* const matmul = op.As<MatMul>();
  const bool has_float8 = gpu.major == 0 || std::pair(gpu.major, gpu.minor) >= std::pair(8, 9);
  if (matmul == nullptr || !matmul->is_float8() || has_float8) return CheckOneDTypeOfMatrices("device CUDA", op);
  return absl::UnimplementedError(
      absl::StrCat("MatMul: a is ", matmul->a.ToString(), " and b is ", matmul->b.ToString(),
                   ", and this GPU has compute capability ", gpu.major, ".", gpu.minor,
                   "; GPUs multiply fp8 matrices from 8.9 on (Ada, Hopper and newer): choose a newer GPU, "
                   "or precision.matmuls AS_COMPUTED, which multiplies bf16 or f16 matrices"));
}

}  // namespace shale::cuda
