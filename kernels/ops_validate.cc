#include "kernels/op_checker.h"
#include "kernels/ops.h"

namespace shale {

absl::Status Validate(const Op& op) {
  return std::visit(
      [&](const auto& o) {
        internal::OpChecker checker(NameOf(op));
        internal::Check(checker, o);
        checker.NoOtherOverlaps(o);
        return checker.status();
      },
      op.kinds());
}

}  // namespace shale
