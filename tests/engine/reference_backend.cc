#include "tests/engine/reference_backend.h"

#include <optional>

#include "kernels/device/cpu/cpu_device.h"
#include "kernels/reference/reference_ops.h"
#include "sharding/comm/in_process.h"

namespace shale::testing {
namespace {

class ReferenceBackend : public Backend {
 public:
  std::unique_ptr<Ops> CreateOps(int64_t, const Device*) const override { return CreateReferenceOps(); }
  absl::StatusOr<std::vector<std::shared_ptr<Device>>> CreateDevices(int ranks, bool synchronous) const override {
    return std::vector<std::shared_ptr<Device>>(ranks, CreateCpuDevice({.synchronous = synchronous}));
  }
  absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateGroup(const GroupMembers& group) const override {
    return CreateInProcessGroup(group.size);
  }
  absl::StatusOr<Budget> DefaultBudget(int64_t) const override { return Budget{}; }
};

}  // namespace

std::unique_ptr<Backend> CreateReferenceBackend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace shale::testing
