// Replaces cudnn_graphs.cc in a build without the headers of cuDNN and its frontend.
#include "kernels/cuda/cudnn/cudnn_graphs.h"

namespace shale::cuda {

absl::Status BuiltWithCudnn() {
  return absl::UnimplementedError(
      "this program was built without cuDNN attention; to build with it, install a CUDA toolkit, cudnn.h (package "
      "cudnn9-cuda-13) and the headers of the Python package nvidia-cudnn-frontend (tools/test fetches them)");
}

absl::StatusOr<std::unique_ptr<CudnnGraphs>> LoadCudnn(const CudnnOptions&) { return BuiltWithCudnn(); }

}  // namespace shale::cuda
