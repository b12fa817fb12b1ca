#include "kernels/cuda/backends.h"

#include <variant>

#include "kernels/ops.h"

namespace shale::cuda {

absl::string_view KernelsOfAttention(const AttentionBackend* library, const Op& op) {
  return std::visit(
      [&]<class OpType>(const OpType& o) -> absl::string_view {
        if constexpr (AttentionOp<OpType>) return IsByLibrary(library, o) ? kCudnnKernels : kOwnKernels;
        return "";
      },
      op.kinds());
}

}  // namespace shale::cuda
