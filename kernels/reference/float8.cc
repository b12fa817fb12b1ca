#include "kernels/float8.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/ops/float8.h"
#include "kernels/reference/element.h"
#include "kernels/reference/reference_kernels.h"

namespace shale::reference {

absl::Status Reference(const AbsMax& op) {
  double maximum = 0;
  for (int64_t r = 0; r < op.x_RC.dim(0); ++r) {
    for (int64_t c = 0; c < op.x_RC.dim(1); ++c) {
      const double x = std::abs(Get(op.x_RC, RowOffset(op.x_RC, r) + c));
      maximum = std::isnan(x) || std::isnan(maximum) ? std::nan("") : std::max(maximum, x);
    }
  }
  Put(op.maximum_1, 0, maximum);
  return absl::OkStatus();
}

// The only op that rounds to fp32 on its way: x * factor, which is then rounded to fp8.
absl::Status Reference(const QuantizeFloat8& op) {
  const bool has_out = op.out_RC.present();
  const int64_t R = op.x_RC.dim(0), C = op.x_RC.dim(1);
  const float factor = Float8Factor((has_out ? op.out_RC : op.transposed_CR).dtype, op.maximum_1.as<const float>()[0]);
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t c = 0; c < C; ++c) {
      const float scaled = static_cast<float>(Get(op.x_RC, RowOffset(op.x_RC, r) + c)) * factor;
      if (has_out) Put(op.out_RC, r * C + c, scaled);
      if (op.transposed_CR.present()) Put(op.transposed_CR, c * R + r, scaled);
    }
  }
  op.scale_1.as<float>()[0] = 1 / factor;
  return absl::OkStatus();
}

}  // namespace shale::reference
