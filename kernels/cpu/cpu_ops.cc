#include "kernels/cpu/cpu_ops.h"

#include "kernels/check.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/instruction_set.h"
#include "kernels/cpu/onednn_matmuls.h"
#include "kernels/cpu/team.h"
#include "kernels/ops.h"
#include "kernels/reference/host_ops.h"

namespace shale {
namespace {

class CpuOps : public HostOps {
 public:
  explicit CpuOps(const CpuOptions& options)
      : context_{.team = std::make_shared<cpu::Team>(options.threads),
                 .cpu_matmuls = options.cpu_matmuls == CpuMatMuls::kAuto ? DefaultCpuMatMuls() : options.cpu_matmuls} {
    context_.onednn = std::make_shared<cpu::OneDnnMatMuls>(context_.team);
  }

  int64_t ScratchBytes(const Op& op) const override {
    return std::visit([&](const auto& o) { return cpu::ScratchBytesOf(o, context_); }, op.kinds());
  }
  int64_t PackedBytes(const MatMul& op) const override { return cpu::PackedBytesOf(op, context_); }
  absl::Status CheckAvailable(const Op& op) const override { return CheckOneDTypeOfMatrices("device CPU", op); }
  absl::Status Prepare(const Op& op, int64_t /*scratch_bytes*/) override {
    SHALE_RETURN_IF_ERROR(context_.team->Start());
    return std::visit([&](const auto& o) { return cpu::PrepareOp(o, context_); }, op.kinds());
  }
  absl::Status Run(const Op& op, Scratch scratch) const override {
    SHALE_RETURN_IF_ERROR(context_.team->Start());
    return std::visit([&](const auto& o) { return cpu::RunAny(o, scratch, context_); }, op.kinds());
  }

 private:
  cpu::Context context_;
};

}  // namespace

CpuMatMuls DefaultCpuMatMuls() {
  return cpu::UsedInstructionSet() == cpu::InstructionSet::kAvx2 ? CpuMatMuls::kPacked : CpuMatMuls::kOneDnn;
}

std::unique_ptr<Ops> CreateCpuOps(const CpuOptions& options) {
  cpu::UsedInstructionSet();  // Limits the instructions of all kernels.
  SHALE_CHECK(options.threads >= 1) << "CpuOptions.threads is " << options.threads;
  return std::make_unique<CpuOps>(options);
}

}  // namespace shale
