#include "kernels/cuda/availability.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/op_backend.h"
#include "kernels/ops/matmul.h"

namespace shale::cuda {

absl::Status CheckAvailableOn(const ComputeCapability& gpu, const Op& op) {
  const auto* const matmul = op.As<MatMul>();
  if (matmul == nullptr || !matmul->is_float8()) return CheckOneDTypeOfMatrices("device CUDA", op);
  const bool known = gpu.major != 0;
  const std::string which = absl::StrCat("MatMul: a is ", matmul->a.ToString(), " and b is ", matmul->b.ToString(),
                                         ", and this GPU has compute capability ", gpu.major, ".", gpu.minor);
  if (known && std::pair(gpu.major, gpu.minor) < std::pair(8, 9)) {
    return absl::UnimplementedError(
        absl::StrCat(which, "; GPUs multiply fp8 matrices from 8.9 on (Ada, Hopper and newer): choose a newer GPU, or ",
                     "precision.matmuls AS_COMPUTED, which multiplies bf16 or f16 matrices"));
  }
  // Newer GPUs have scales of 32 elements instead, which are powers of two.
  if (known && matmul->scales != Float8Scales::kOne && std::pair(gpu.major, gpu.minor) != std::pair(9, 0)) {
    return absl::UnimplementedError(
        absl::StrCat(which, "; cuBLASLt multiplies fp8 matrices with blockwise scales on 9.0 alone (Hopper): choose ",
                     "precision.fp8_scaling TENSORWISE, or such a GPU"));
  }
  return absl::OkStatus();
}

}  // namespace shale::cuda
