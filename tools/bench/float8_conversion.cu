// Converts with the instruction of the GPU where the architecture that it was compiled for has one (8.9 and newer).
#include <cuda_fp8.h>

#include "absl/strings/str_cat.h"
#include "tools/bench/float8_conversion.h"

namespace shale {
namespace {

__global__ void ConvertKernel(uint8_t* e4m3, uint8_t* e5m2) {
  const unsigned code = blockIdx.x * blockDim.x + threadIdx.x;
  __nv_bfloat16_raw value;
  value.x = static_cast<unsigned short>(code);
  e4m3[code] = __nv_cvt_bfloat16raw_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
  e5m2[code] = __nv_cvt_bfloat16raw_to_fp8(value, __NV_SATFINITE, __NV_E5M2);
}

}  // namespace

absl::Status ConvertEveryBFloat16(uint8_t* e4m3, uint8_t* e5m2, cuda::StreamHandle stream) {
  constexpr int kThreads = 256;
  ConvertKernel<<<kBFloat16Codes / kThreads, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(e4m3, e5m2);
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("conversion to fp8: ", cudaGetErrorString(error)));
}

}  // namespace shale
