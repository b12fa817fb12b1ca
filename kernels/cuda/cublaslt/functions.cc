#include "kernels/cuda/cublaslt/functions.h"

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace shale::cuda {
namespace {

absl::StatusCode CodeOf(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_NOT_INITIALIZED: return absl::StatusCode::kFailedPrecondition;
    case CUBLAS_STATUS_ALLOC_FAILED: return absl::StatusCode::kResourceExhausted;
    case CUBLAS_STATUS_INVALID_VALUE: return absl::StatusCode::kInvalidArgument;
    case CUBLAS_STATUS_ARCH_MISMATCH:
    case CUBLAS_STATUS_NOT_SUPPORTED: return absl::StatusCode::kUnimplemented;
    default: return absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::StatusOr<CublasLtFunctions> CublasLtFunctions::Load(const LibrarySearch& search) {
  const LibraryName name = {.title = "cuBLASLt (matmul)",
                            .file = absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR),
                            .source = absl::StrCat("the CUDA toolkit ", CUBLAS_VER_MAJOR,
                                                   " or the Python package nvidia-cublas ", CUBLAS_VER_MAJOR)};
  SHALE_ASSIGN_OR_RETURN(const SharedLibrary library, SharedLibrary::Open(name, search));
  CublasLtFunctions f;
  SHALE_RETURN_IF_ERROR(library.Bind("cublasLtGetVersion", f.GetVersion));
  SHALE_RETURN_IF_ERROR(library.Bind("cublasLtGetStatusName", f.GetStatusName));
  SHALE_RETURN_IF_ERROR(library.Bind("cublasLtCreate", f.Create));
  SHALE_RETURN_IF_ERROR(library.Bind("cublasLtDestroy", f.Destroy));
  SHALE_RETURN_IF_ERROR(library.Bind("cublasLtMatrixLayoutCreate", f.MatrixLayoutCreate));
  SHALE_RETURN_IF_ERROR(library.Bind("cublasLtMatrixLayoutDestroy", f.MatrixLayoutDestroy));
  SHALE_RETURN_IF_ERROR(library.Bind("cublasLtMatmulDescCreate", f.MatmulDescCreate));
  SHALE_RETURN_IF_ERROR(library.Bind("cublasLtMatmulDescDestroy", f.MatmulDescDestroy));
  SHALE_RETURN_IF_ERROR(library.Bind("cublasLtMatmulDescSetAttribute", f.MatmulDescSetAttribute));
  SHALE_RETURN_IF_ERROR(library.Bind("cublasLtMatmulPreferenceCreate", f.MatmulPreferenceCreate));
  SHALE_RETURN_IF_ERROR(library.Bind("cublasLtMatmulPreferenceDestroy", f.MatmulPreferenceDestroy));
  SHALE_RETURN_IF_ERROR(library.Bind("cublasLtMatmulPreferenceSetAttribute", f.MatmulPreferenceSetAttribute));
  SHALE_RETURN_IF_ERROR(library.Bind("cublasLtMatmulAlgoGetHeuristic", f.MatmulAlgoGetHeuristic));
  SHALE_RETURN_IF_ERROR(library.Bind("cublasLtMatmulAlgoCheck", f.MatmulAlgoCheck));
  SHALE_RETURN_IF_ERROR(library.Bind("cublasLtMatmulAlgoCapGetAttribute", f.MatmulAlgoCapGetAttribute));
  SHALE_RETURN_IF_ERROR(library.Bind("cublasLtMatmulAlgoConfigGetAttribute", f.MatmulAlgoConfigGetAttribute));
  SHALE_RETURN_IF_ERROR(library.Bind("cublasLtMatmulAlgoConfigSetAttribute", f.MatmulAlgoConfigSetAttribute));
  SHALE_RETURN_IF_ERROR(library.Bind("cublasLtMatmul", f.Matmul));
  return f;
}

absl::Status CublasLtFunctions::StatusOf(const char* call, cublasStatus_t status) const {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return absl::Status(CodeOf(status), absl::StrCat(call, ": ", GetStatusName(status)));
}

}  // namespace shale::cuda
