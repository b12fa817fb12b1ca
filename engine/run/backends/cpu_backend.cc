#include "engine/run/backends/cpu_backend.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/device/cpu/cpu_device.h"
#include "kernels/device/cpu/physical_memory.h"
#include "kernels/reference/reference_ops.h"
#include "sharding/comm/in_process.h"

namespace shale {
namespace {

class CpuBackend : public Backend {
 public:
  explicit CpuBackend(const CpuBackendOptions& options) : options_(options) {}

  std::unique_ptr<Ops> CreateOps(int64_t ranks, const Device* /*device*/) const override {
    return CreateHostOps(options_, ranks);
  }

  CpuMatMuls cpu_matmuls() const override {
    if (options_.ops != OpsKind::kFast) return CpuMatMuls::kAuto;
    return options_.cpu_matmuls == CpuMatMuls::kAuto ? DefaultCpuMatMuls() : options_.cpu_matmuls;
  }

  // All ranks share one device, which counts what they allocate together.
  absl::StatusOr<std::vector<std::shared_ptr<Device>>> CreateDevices(int ranks, bool synchronous) const override {
    return std::vector<std::shared_ptr<Device>>(
        ranks, CreateCpuDevice({.synchronous = synchronous, .threads = options_.threads(ranks)}));
  }

  absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateGroup(const GroupMembers& group) const override {
    SHALE_RETURN_IF_ERROR(group.CheckOneProcess());
    return CreateInProcessGroup(group.size);
  }

  absl::StatusOr<Budget> DefaultBudget(int64_t ranks) const override {
    return Budget{.bytes = PhysicalMemoryBytes() / 5 * 4 / std::max<int64_t>(1, ranks),
                  .origin = absl::StrCat("80 % of this machine's memory",
                                         ranks > 1 ? absl::StrCat(", divided by ", ranks, " ranks") : "")};
  }

 private:
  const CpuBackendOptions options_;
};

}  // namespace

std::unique_ptr<Ops> CreateHostOps(const CpuBackendOptions& options, int64_t ranks) {
  if (options.ops == OpsKind::kReference) return CreateReferenceOps();
  return CreateCpuOps({.threads = options.threads(ranks), .cpu_matmuls = options.cpu_matmuls});
}

std::unique_ptr<Backend> CreateCpuBackend(const CpuBackendOptions& options) {
  return std::make_unique<CpuBackend>(options);
}

}  // namespace shale
