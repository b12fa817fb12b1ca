#include "kernels/cuda/planned_ops.h"

#include <utility>

#include "absl/status/status.h"
#include "kernels/cuda/scratch.h"

namespace shale {
namespace {

absl::Status OnlyPlanned() { return absl::FailedPreconditionError("these ops plan for a GPU and run nothing"); }

class PlannedMatMuls final : public cuda::MatMulBackend {
 public:
  explicit PlannedMatMuls(int64_t workspace_bytes) : workspace_bytes_(workspace_bytes) {}

  int64_t ScratchBytes(const MatMul&) const override { return workspace_bytes_; }
  absl::Status Prepare(const MatMul&) override { return OnlyPlanned(); }
  absl::Status Enqueue(const MatMul&, Scratch, cuda::StreamHandle) override { return OnlyPlanned(); }

 private:
  const int64_t workspace_bytes_;
};

class PlannedCudaOps final : public Ops {
 public:
  explicit PlannedCudaOps(PlannedCudaOpsOptions options)
      : options_(std::move(options)), matmuls_(options_.matmul_workspace_bytes) {}

  const Ops* host() const override { return options_.host.get(); }
  int64_t ScratchBytes(const Op& op) const override {
    return cuda::ScratchBytesWith(matmuls_, options_.attention.get(), op);
  }
  absl::string_view KernelsOf(const Op& op) const override {
    return cuda::KernelsOfAttention(options_.attention.get(), op);
  }
  absl::Status CheckAvailable(const Op& op) const override { return cuda::CheckAvailableOn(options_.gpu, op); }
  int64_t AmpleScratchBytes(const Op& op, int64_t most_bytes) const override {
    return cuda::AmpleScratchBytesWith(matmuls_, options_.attention.get(), op, most_bytes);
  }
  absl::Status Prepare(const Op&, int64_t) override { return OnlyPlanned(); }

 protected:
  absl::Status Enqueue(const Op&, Scratch, Stream&) override { return OnlyPlanned(); }

 private:
  const PlannedCudaOpsOptions options_;
  const PlannedMatMuls matmuls_;
};

}  // namespace

std::unique_ptr<Ops> CreatePlannedCudaOps(PlannedCudaOpsOptions options) {
  return std::make_unique<PlannedCudaOps>(std::move(options));
}

}  // namespace shale
