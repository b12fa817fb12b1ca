#include "kernels/ops/norm.h"

#include <cmath>

#include "kernels/reference/element.h"
#include "kernels/reference/reference_kernels.h"

namespace shale::reference {
namespace {

// Sets sum = x + residual if there is a residual. Returns the tensor to normalize.
template <class OpType>
Tensor AddResidual(const OpType& op) {
  if (!op.residual.present()) return op.x;
  const int64_t c = op.x.dim(-1);
  for (int64_t r = 0; r < RowCount(op.x); ++r) {
    const int64_t x = RowOffset(op.x, r), residual = RowOffset(op.residual, r), sum = RowOffset(op.sum, r);
    for (int64_t i = 0; i < c; ++i) Put(op.sum, sum + i, Get(op.x, x + i) + Get(op.residual, residual + i));
  }
  return op.sum;
}

double GetOr0(const Tensor& t, int64_t offset) { return t.present() ? Get(t, offset) : 0; }

}  // namespace

absl::Status Reference(const RmsNormForward& op) {
  const Tensor s = AddResidual(op);
  const int64_t c = s.dim(-1);
  for (int64_t r = 0; r < RowCount(s); ++r) {
    const int64_t s_row = RowOffset(s, r);
    double squares = 0;
    for (int64_t i = 0; i < c; ++i) squares += Get(s, s_row + i) * Get(s, s_row + i);
    const double rstd = Put(op.rstd_R, r, 1 / std::sqrt(squares / static_cast<double>(c) + op.epsilon));
    if (!op.y.present()) continue;
    const int64_t y_row = RowOffset(op.y, r);
    for (int64_t i = 0; i < c; ++i) {
      Put(op.y, y_row + i, Get(s, s_row + i) * rstd * (op.weight_offset + Get(op.weight_C, i)));
    }
  }
  return absl::OkStatus();
}

absl::Status Reference(const RmsNormBackward& op) {
  const int64_t c = op.x.dim(-1);
  const int64_t rows = RowCount(op.x);
  // The gradients of the parameters come first, because d_x may overwrite d_y.
  for (int64_t i = 0; i < c && op.d_weight_C.present(); ++i) {
    double total = 0;
    for (int64_t r = 0; r < rows; ++r) {
      total += Get(op.d_y, RowOffset(op.d_y, r) + i) * Get(op.x, RowOffset(op.x, r) + i) * Get(op.rstd_R, r);
    }
    PutGradient(op.d_weight_C, i, total, op.accumulate);
  }
  // With g = d_y (weight_offset + weight) and n = x rstd: d_x = rstd (g - n mean(g n)).
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t x_row = RowOffset(op.x, r), d_y_row = RowOffset(op.d_y, r), d_x_row = RowOffset(op.d_x, r);
    const int64_t residual_row = op.d_residual.present() ? RowOffset(op.d_residual, r) : 0;
    const double rstd = Get(op.rstd_R, r);
    const auto g = [&](int64_t i) { return Get(op.d_y, d_y_row + i) * (op.weight_offset + Get(op.weight_C, i)); };
    const auto n = [&](int64_t i) { return Get(op.x, x_row + i) * rstd; };
    double mean_gn = 0;
    for (int64_t i = 0; i < c; ++i) mean_gn += g(i) * n(i) / static_cast<double>(c);
    for (int64_t i = 0; i < c; ++i) {
      Put(op.d_x, d_x_row + i, GetOr0(op.d_residual, residual_row + i) + rstd * (g(i) - n(i) * mean_gn));
    }
  }
  return absl::OkStatus();
}

absl::Status Reference(const LayerNormForward& op) {
  const Tensor s = AddResidual(op);
  const int64_t c = s.dim(-1);
  for (int64_t r = 0; r < RowCount(s); ++r) {
    const int64_t s_row = RowOffset(s, r);
    double sum = 0;
    for (int64_t i = 0; i < c; ++i) sum += Get(s, s_row + i);
    const double mean = Put(op.mean_R, r, sum / static_cast<double>(c));
    double squares = 0;
    for (int64_t i = 0; i < c; ++i) squares += std::pow(Get(s, s_row + i) - sum / static_cast<double>(c), 2);
    const double rstd = Put(op.rstd_R, r, 1 / std::sqrt(squares / static_cast<double>(c) + op.epsilon));
    if (!op.y.present()) continue;
    const int64_t y_row = RowOffset(op.y, r);
    for (int64_t i = 0; i < c; ++i) {
      Put(op.y, y_row + i, (Get(s, s_row + i) - mean) * rstd * Get(op.weight_C, i) + Get(op.bias_C, i));
    }
  }
  return absl::OkStatus();
}

absl::Status Reference(const LayerNormBackward& op) {
  const int64_t c = op.x.dim(-1);
  const int64_t rows = RowCount(op.x);
  // The gradients of the parameters come first, because d_x may overwrite d_y.
  for (int64_t i = 0; i < c; ++i) {
    double weight_total = 0, bias_total = 0;
    for (int64_t r = 0; r < rows; ++r) {
      const double d_y = Get(op.d_y, RowOffset(op.d_y, r) + i);
      weight_total += d_y * (Get(op.x, RowOffset(op.x, r) + i) - Get(op.mean_R, r)) * Get(op.rstd_R, r);
      bias_total += d_y;
    }
    if (op.d_weight_C.present()) PutGradient(op.d_weight_C, i, weight_total, op.accumulate);
    if (op.d_bias_C.present()) PutGradient(op.d_bias_C, i, bias_total, op.accumulate);
  }
  // With g = d_y weight and n = (x - mean) rstd: d_x = rstd (g - mean(g) - n mean(g n)).
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t x_row = RowOffset(op.x, r), d_y_row = RowOffset(op.d_y, r), d_x_row = RowOffset(op.d_x, r);
    const int64_t residual_row = op.d_residual.present() ? RowOffset(op.d_residual, r) : 0;
    const double mean = Get(op.mean_R, r), rstd = Get(op.rstd_R, r);
    const auto g = [&](int64_t i) { return Get(op.d_y, d_y_row + i) * Get(op.weight_C, i); };
    const auto n = [&](int64_t i) { return (Get(op.x, x_row + i) - mean) * rstd; };
    double mean_g = 0, mean_gn = 0;
    for (int64_t i = 0; i < c; ++i) {
      mean_g += g(i) / static_cast<double>(c);
      mean_gn += g(i) * n(i) / static_cast<double>(c);
    }
    for (int64_t i = 0; i < c; ++i) {
      Put(op.d_x, d_x_row + i, GetOr0(op.d_residual, residual_row + i) + rstd * (g(i) - mean_g - n(i) * mean_gn));
    }
  }
  return absl::OkStatus();
}

}  // namespace shale::reference
