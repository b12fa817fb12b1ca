// Matrix products by cuBLASLt.
//
// Bits: sums of fp32 products, in an order that the algorithm decides. The algorithm is chosen by ProductKey alone: the
// tuning table's for this GPU and version of the library, else the first that the library's heuristic names. So a
// product and its recomputation have the same bits, bias included, which the product itself adds; only a bf16 bias of
// an f32 c is written to c first, and the product added to that.
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

struct CublasLtProductOptions {
  // What every product may use, and what ScratchBytes answers. 32 MiB is NVIDIA's advice for Hopper.
  int64_t workspace_bytes = int64_t{32} << 20;
  bool allow_tf32 = false;
  // May be null. An algorithm of it that cannot be used is an error.
  std::shared_ptr<const TuningTable> tuning;
  std::string gpu;  // For `tuning`: CudaDeviceProperties::name.
};

// `load` (CublasLtFunctions::Load) is called when a product is first prepared or enqueued, and the library then opened
// on the calling thread's device: ScratchBytes needs neither library nor GPU. Uses BroadcastBias of kernels.h.
std::unique_ptr<ProductBackend> CreateCublasLtProducts(std::function<absl::StatusOr<CublasLtFunctions>()> load,
                                                       CublasLtProductOptions options);

}  // namespace shale::cuda
