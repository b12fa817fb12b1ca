// A table of the cuBLASLt functions that Shale calls. The library is loaded at run time and never linked. Tests fill
// the table with functions of their own.
#pragma once

#include <cublasLt.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device/cuda/shared_library.h"

namespace shale::cuda {

// Each member is the library's function of the same name with the prefix cublasLt.
struct CublasLtFunctions {
  decltype(&cublasLtGetVersion) GetVersion = nullptr;
  decltype(&cublasLtGetStatusName) GetStatusName = nullptr;
  decltype(&cublasLtCreate) Create = nullptr;
  decltype(&cublasLtDestroy) Destroy = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) MatrixLayoutCreate = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) MatrixLayoutDestroy = nullptr;
  decltype(&cublasLtMatmulDescCreate) MatmulDescCreate = nullptr;
  decltype(&cublasLtMatmulDescDestroy) MatmulDescDestroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) MatmulDescSetAttribute = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) MatmulPreferenceCreate = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) MatmulPreferenceDestroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) MatmulPreferenceSetAttribute = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) MatmulAlgoGetHeuristic = nullptr;
  decltype(&cublasLtMatmulAlgoCheck) MatmulAlgoCheck = nullptr;
  decltype(&cublasLtMatmulAlgoCapGetAttribute) MatmulAlgoCapGetAttribute = nullptr;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) MatmulAlgoConfigGetAttribute = nullptr;
  decltype(&cublasLtMatmulAlgoConfigSetAttribute) MatmulAlgoConfigSetAttribute = nullptr;
  decltype(&cublasLtMatmul) Matmul = nullptr;

  // Loads the library version whose binary interface matches the headers of this build. Starts no driver and needs no
  // GPU. Returns an error if the library or one of the functions is missing.
  static absl::StatusOr<CublasLtFunctions> Load(const LibrarySearch& search);

  // Returns OK for CUBLAS_STATUS_SUCCESS, else an error that reads "<call>: CUBLAS_STATUS_...".
  absl::Status StatusOf(const char* call, cublasStatus_t status) const;
};

}  // namespace shale::cuda
