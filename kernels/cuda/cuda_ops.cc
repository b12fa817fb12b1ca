#include "kernels/cuda/cuda_ops.h"

#include <type_traits>
#include <utility>
#include <variant>

#include "kernels/check.h"
#include "kernels/cuda/kernels.h"
#include "kernels/device/cuda/cuda_stream.h"
#include "kernels/ops.h"

namespace shale {
namespace {

using cuda::StreamHandle;

template <class OpType>
inline constexpr bool kIsMatMul = std::is_same_v<OpType, MatMul>;

class CudaOps : public Ops {
 public:
  explicit CudaOps(CudaOpsOptions options) : options_(std::move(options)) {}

  const Ops* host() const override { return options_.host.get(); }
  int64_t ScratchBytes(const Op& op) const override {
    return cuda::ScratchBytesWith(*options_.matmuls, options_.attention.get(), op);
  }
  absl::string_view KernelsOf(const Op& op) const override {
    return cuda::KernelsOfAttention(options_.attention.get(), op);
  }
  absl::Status CheckAvailable(const Op& op) const override { return cuda::CheckAvailableOn(options_.gpu, op); }
  int64_t AmpleScratchBytes(const Op& op, int64_t most_bytes) const override {
    return cuda::AmpleScratchBytesWith(*options_.matmuls, options_.attention.get(), op, most_bytes);
  }
  absl::Status Prepare(const Op& op, int64_t scratch_bytes) override {
    if (options_.use_device) SHALE_RETURN_IF_ERROR(options_.use_device());
    return std::visit([&](const auto& o) { return PrepareOp(o, scratch_bytes); }, op.kinds());
  }

 protected:
  absl::Status Enqueue(const Op& op, Scratch scratch, Stream& stream) override {
    SHALE_ASSIGN_OR_RETURN(CudaStream * cuda_stream, CudaStream::From(stream));
    return cuda_stream->Enqueue([&](StreamHandle handle) {
      return std::visit([&](const auto& o) { return Start(o, scratch, handle); }, op.kinds());
    });
  }

 private:
  template <class OpType>
  absl::Status PrepareOp(const OpType& op, int64_t scratch_bytes) {
    if constexpr (kIsMatMul<OpType>) return options_.matmuls->Prepare(op);
    if constexpr (cuda::AttentionOp<OpType>) {
      if (cuda::IsByLibrary(options_.attention.get(), op)) return options_.attention->Prepare(op, scratch_bytes);
      if (options_.attention != nullptr && options_.on_declined) options_.on_declined(Op(op));
    }
    return absl::OkStatus();
  }

  template <class OpType>
  absl::Status Start(const OpType& op, Scratch scratch, StreamHandle stream) {
    if constexpr (kIsMatMul<OpType>) {
      return options_.matmuls->Enqueue(op, scratch, stream);
    } else {
      if constexpr (cuda::AttentionOp<OpType>) {
        if (cuda::IsByLibrary(options_.attention.get(), op)) return options_.attention->Enqueue(op, scratch, stream);
      }
      return cuda::Run(op, scratch, stream);
    }
  }

  const CudaOpsOptions options_;
};

}  // namespace

std::unique_ptr<Ops> CreateCudaOps(CudaOpsOptions options) {
  SHALE_CHECK(options.matmuls != nullptr) << "CudaOpsOptions.matmuls";
  return std::make_unique<CudaOps>(std::move(options));
}

}  // namespace shale
