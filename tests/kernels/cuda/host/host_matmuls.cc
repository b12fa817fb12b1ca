#include "tests/kernels/cuda/host/host_matmuls.h"

#include <utility>

#include "kernels/ops/matmul.h"
#include "kernels/reference/host_ops.h"
#include "tests/kernels/cuda/host/host_op.h"

namespace shale::cuda_on_host {
namespace {

class HostMatMuls final : public cuda::MatMulBackend {
 public:
  HostMatMuls(std::unique_ptr<Ops> owned, HostOps& ops) : owned_(std::move(owned)), ops_(ops) {}

  int64_t ScratchBytes(const MatMul& op) const override { return ops_.ScratchBytes(op); }
  absl::Status Prepare(const MatMul& op) override { return ops_.Prepare(op, ops_.ScratchBytes(op)); }
  absl::Status Enqueue(const MatMul& op, Scratch scratch, cuda::StreamHandle stream) override {
    return EnqueueHostOp(ops_, op, scratch, stream);
  }

 private:
  const std::unique_ptr<Ops> owned_;
  HostOps& ops_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<cuda::MatMulBackend>> CreateHostMatMuls(std::unique_ptr<Ops> ops) {
  auto* host_ops = dynamic_cast<HostOps*>(ops.get());
  if (host_ops == nullptr) return absl::InvalidArgumentError("wanted ops that run on the host, found another device's");
  return std::make_unique<HostMatMuls>(std::move(ops), *host_ops);
}

}  // namespace shale::cuda_on_host
