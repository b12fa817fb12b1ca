#include "kernels/ops/rope.h"

#include <cmath>
#include <limits>

#include "kernels/reference/element.h"
#include "kernels/reference/index_checks.h"
#include "kernels/reference/reference_kernels.h"
#include "kernels/reference/rope_frequency.h"

namespace shale::reference {

absl::Status Reference(const Rope& op) {
  SHALE_RETURN_IF_ERROR(CheckPositionIds(op.kName, op.position_ids_BS));
  SHALE_RETURN_IF_ERROR(CheckBegins(op.kName, op.begins_B, op.x_BSHD.dim(1), std::numeric_limits<int32_t>::max()));
  const Tensor& x = op.x_BSHD;
  const int64_t heads = x.dim(2), half = x.dim(3) / 2;
  for (int64_t row = 0; row < RowCount(x); ++row) {
    const int64_t begin = RowOffset(x, row);
    const auto position = static_cast<double>(PositionIn(op, row / heads, x.dim(1)));
    for (int64_t i = 0; i < half; ++i) {
      const double angle = (op.inverse ? -position : position) * RopeFrequency(op.theta, op.scaling, i, x.dim(3));
      const double cosine = std::cos(angle), sine = std::sin(angle);
      const double first = Get(x, begin + i), second = Get(x, begin + half + i);
      Put(x, begin + i, first * cosine - second * sine);
      Put(x, begin + half + i, second * cosine + first * sine);
    }
  }
  return absl::OkStatus();
}

}  // namespace shale::reference
