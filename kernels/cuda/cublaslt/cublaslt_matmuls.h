// CreateCublasLtMatMuls: the MatMulBackend that uses cuBLASLt.
//
// Results are sums in fp32, in an order that the algorithm decides. On one GPU and library version, the MatMulKey alone
// decides the algorithm: it is the one in the tuning table, else the first proposal of the library's heuristic that can
// be used. So a matmul and its recomputation have the same bits. The matmul itself adds the bias, except for those that
// MatMulKey::Of names: these are written to c first, and the matmul is then added to c.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/cuda/backends.h"
#include "kernels/cuda/cublaslt/functions.h"
#include "kernels/cuda/cublaslt/tuning_table.h"

namespace shale::cuda {

struct CublasLtMatMulOptions {
  int64_t workspace_bytes = kMatMulWorkspaceBytes;  // The value of ScratchBytes.
  bool allow_tf32 = false;
  // May be null. If it has an algorithm that cannot be used, Prepare and Enqueue return an error.
  std::shared_ptr<const TuningTable> tuning;
  std::string gpu;  // For `tuning`: CudaDeviceProperties::name.
};

// Calls `load` (CublasLtFunctions::Load) when a matmul is first prepared or enqueued, and then opens the library on the
// calling thread's current device. ScratchBytes needs neither library nor GPU. Uses BroadcastBias of kernels.h.
// REQUIRES: `load` is set, workspace_bytes >= 0
std::unique_ptr<MatMulBackend> CreateCublasLtMatMuls(std::function<absl::StatusOr<CublasLtFunctions>()> load,
                                                     CublasLtMatMulOptions options);

}  // namespace shale::cuda
