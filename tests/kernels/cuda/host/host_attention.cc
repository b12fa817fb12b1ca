#include "tests/kernels/cuda/host/host_attention.h"

#include <utility>

#include "kernels/ops/attention.h"
#include "kernels/reference/host_ops.h"
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/cuda/host/host_op.h"

namespace shale::cuda_on_host {
namespace {

const HostOps& Reference() {
  static const auto& ops = *dynamic_cast<const HostOps*>(CreateReferenceOps().release());
  return ops;
}

class HostAttention final : public cuda::AttentionBackend {
 public:
  explicit HostAttention(std::unique_ptr<cuda::AttentionBackend> library) : library_(std::move(library)) {}

  bool Takes(const AttentionForward&) const override { return true; }
  bool Takes(const AttentionBackward&) const override { return true; }
  int64_t ScratchBytes(const AttentionForward& op) const override { return ScratchOf(op); }
  int64_t ScratchBytes(const AttentionBackward& op) const override { return ScratchOf(op); }
  int64_t AmpleScratchBytes(const AttentionBackward& op, int64_t most_bytes) const override {
    return library_->Takes(op) ? library_->AmpleScratchBytes(op, most_bytes) : ScratchOf(op);
  }
  absl::Status Prepare(const AttentionForward& op, int64_t scratch_bytes) override {
    return library_->Takes(op) ? library_->Prepare(op, scratch_bytes) : absl::OkStatus();
  }
  absl::Status Prepare(const AttentionBackward& op, int64_t scratch_bytes) override {
    return library_->Takes(op) ? library_->Prepare(op, scratch_bytes) : absl::OkStatus();
  }
  absl::Status Enqueue(const AttentionForward& op, Scratch scratch, cuda::StreamHandle stream) override {
    return Start(op, scratch, stream);
  }
  absl::Status Enqueue(const AttentionBackward& op, Scratch scratch, cuda::StreamHandle stream) override {
    return Start(op, scratch, stream);
  }

 private:
  template <class OpType>
  int64_t ScratchOf(const OpType& op) const {
    return library_->Takes(op) ? library_->ScratchBytes(op) : Reference().ScratchBytes(op);
  }

  template <class OpType>
  absl::Status Start(const OpType& op, Scratch scratch, cuda::StreamHandle stream) {
    return library_->Takes(op) ? library_->Enqueue(op, scratch, stream)
                               : EnqueueHostOp(Reference(), op, scratch, stream);
  }

  const std::unique_ptr<cuda::AttentionBackend> library_;
};

}  // namespace

std::unique_ptr<cuda::AttentionBackend> CreateHostAttention(std::unique_ptr<cuda::AttentionBackend> library) {
  return std::make_unique<HostAttention>(std::move(library));
}

}  // namespace shale::cuda_on_host
