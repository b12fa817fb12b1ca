#include "kernels/reference/reference_ops.h"

#include "kernels/ops.h"
#include "kernels/reference/host_ops.h"
#include "kernels/reference/reference_kernels.h"
#include "kernels/reference/scalar_ops.h"

namespace shale {
namespace {

class ReferenceOps : public HostOps {
 public:
  int64_t ScratchBytes(const Op& op) const override { return 0; }
  absl::Status Run(const Op& op, Scratch scratch) const override { return RunReference(op); }
};

}  // namespace

std::unique_ptr<Ops> CreateReferenceOps() { return std::make_unique<ReferenceOps>(); }

absl::Status RunReference(const Op& op) {
  return std::visit(
      [](const auto& o) {
        if constexpr (requires { RunOnHost(o); }) {
          return RunOnHost(o);
        } else {
          return reference::Reference(o);
        }
      },
      op.kinds());
}

}  // namespace shale
