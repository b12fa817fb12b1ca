#include "kernels/float8.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/check.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/float8.h"
#include "kernels/reference/element.h"
#include "kernels/reference/index_checks.h"
#include "kernels/reference/reference_kernels.h"

namespace shale::reference {
namespace {

// The matrix of a source ([Note: sources of fp8]): x itself, or a matrix of its own.
class SourceMatrix {
 public:
  SourceMatrix(const Tensor& x, const Float8Source& source) : matrix_(x) {
    if (source.kind == Float8Source::Kind::kMatrix) return;
    const int64_t R = x.dim(0), C = source.ColumnsOf(x);
    matrix_ = Tensor::Contiguous(x.dtype, {R, C});
    bytes_.resize(static_cast<size_t>(matrix_.extent_bytes()));
    matrix_.data = bytes_.data();
    Compute(x, source);
  }
  const Tensor& operator*() const { return matrix_; }

 private:
  void Compute(const Tensor& x, const Float8Source& source) {
    const absl::Status status = StatusOf(x, source);
    SHALE_CHECK(status.ok()) << status;
  }
  absl::Status StatusOf(const Tensor& x, const Float8Source& source) {
    using Kind = Float8Source::Kind;
    switch (source.kind) {
      case Kind::kMatrix: break;
      case Kind::kNorm:
      case Kind::kLayerNorm: Normalize(x, source); break;
      case Kind::kRope: CopyRows(x); return Reference(source.RopeOf(matrix_));
      case Kind::kGelu:
        CopyRows(x);
        return Reference(GeluForward{.x_TF = matrix_, .y_TF = matrix_, .kind = source.gelu});
      case Kind::kGeluGradient:
        CopyRows(x);
        return Reference(
            GeluBackward{.x_TF = matrix_, .d_y_TF = source.d_y_RF, .d_x_TF = matrix_, .kind = source.gelu});
      case Kind::kGate: return Reference(SwiGluForward{.gate_up_T2F = x, .y_TF = matrix_, .gate = source.gate});
      case Kind::kGateGradient:
        return Reference(
            SwiGluBackward{.gate_up_T2F = x, .d_y_TF = source.d_y_RF, .d_gate_up_T2F = matrix_, .gate = source.gate});
    }
    return absl::OkStatus();
  }
  void CopyRows(const Tensor& x) {
    for (int64_t r = 0; r < matrix_.dim(0); ++r) {
      for (int64_t c = 0; c < matrix_.dim(1); ++c) Put(matrix_, r * matrix_.dim(1) + c, Get(x, RowOffset(x, r) + c));
    }
  }
  void Normalize(const Tensor& x, const Float8Source& source) {
    const bool centers = source.kind == Float8Source::Kind::kLayerNorm;
    for (int64_t r = 0; r < matrix_.dim(0); ++r) {
      for (int64_t c = 0; c < matrix_.dim(1); ++c) {
        const double number = Get(x, RowOffset(x, r) + c) - (centers ? Get(source.mean_R, r) : 0);
        const double y = number * Get(source.rstd_R, r) * (source.weight_offset + Get(source.weight_C, c));
        Put(matrix_, r * matrix_.dim(1) + c, centers ? y + Get(source.bias_C, c) : y);  // A zero keeps its sign.
      }
    }
  }

  std::vector<std::byte> bytes_;
  Tensor matrix_;
};

// Returns the larger one, or NaN if one of them is not a number.
double Larger(double a, double b) { return std::isnan(a) || std::isnan(b) ? std::nan("") : std::max(a, b); }

// Quantizes x, or its transpose if `transposes` is set, to a matrix whose parts have scales of their own.
void QuantizeParts(const Tensor& x, bool transposes, Float8Scales kind, const Tensor& out_RC, const Tensor& scales) {
  const int64_t R = out_RC.dim(0), C = out_RC.dim(1);
  const auto at = [&](int64_t r, int64_t c) { return Get(x, transposes ? RowOffset(x, c) + r : RowOffset(x, r) + c); };
  const Float8ScaleMatrix matrix = Float8ScaleMatrix::Of(kind, R, C);
  std::vector<double> maxima(matrix.elements());
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t c = 0; c < C; ++c) {
      double& maximum = maxima[matrix.PlaceOf(r, c)];
      maximum = Larger(maximum, std::abs(at(r, c)));
    }
  }
  for (int64_t i = 0; i < matrix.elements(); ++i) Put(scales, i, 0);
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t c = 0; c < C; ++c) {
      const int64_t place = matrix.PlaceOf(r, c);
      const float factor = Float8Factor(out_RC.dtype, static_cast<float>(maxima[place]));
      Put(out_RC, r * C + c, static_cast<float>(at(r, c)) * factor);
      scales.as<float>()[place] = 1 / factor;
    }
  }
}

}  // namespace

absl::Status Reference(const AbsMax& op) {
  SHALE_RETURN_IF_ERROR(CheckPositionIds(op.kName, op.source.position_ids_BS));
  const SourceMatrix matrix(op.x_RC, op.source);
  const Tensor& x = *matrix;
  double maximum = 0;
  for (int64_t r = 0; r < x.dim(0); ++r) {
    for (int64_t c = 0; c < x.dim(1); ++c) maximum = Larger(maximum, std::abs(Get(x, RowOffset(x, r) + c)));
  }
  Put(op.maximum_1, 0, maximum);
  return absl::OkStatus();
}

// Unlike other ops, this one and QuantizeShard round to fp32 on their way: x * factor, which is then rounded to fp8.
absl::Status Reference(const QuantizeFloat8& op) {
  SHALE_RETURN_IF_ERROR(CheckPositionIds(op.kName, op.source.position_ids_BS));
  const bool has_out = op.out_RC.present(), has_transposed = op.transposed_CR.present();
  const SourceMatrix matrix(op.x_RC, op.source);
  const Tensor& x = *matrix;
  if (op.scales != Float8Scales::kOne) {
    if (has_out) QuantizeParts(x, false, op.scales, op.out_RC, op.out_scales);
    if (has_transposed) QuantizeParts(x, true, op.scales, op.transposed_CR, op.transposed_scales);
    return absl::OkStatus();
  }
  const int64_t R = x.dim(0), C = x.dim(1);
  const float factor = Float8Factor(op.format(), op.maximum_1.as<const float>()[0]);
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t c = 0; c < C; ++c) {
      const float scaled = static_cast<float>(Get(x, RowOffset(x, r) + c)) * factor;
      if (has_out) Put(op.out_RC, r * C + c, scaled);
      if (has_transposed) Put(op.transposed_CR, c * R + r, scaled);
    }
  }
  op.scale_1.as<float>()[0] = 1 / factor;
  return absl::OkStatus();
}

absl::Status Reference(const QuantizeShard& op) {
  const bool quantizes = op.stage == QuantizeShard::Stage::kQuantize;
  for (int64_t i = 0; quantizes && i < op.out_P.elements(); ++i) Put(op.out_P, i, 0);
  for (size_t q = 0; q < op.parameters->size(); ++q) {
    const auto column = static_cast<int64_t>(q);
    const ElementRange part = op.PartOf(q);
    double maximum = 0;
    if (!quantizes) {
      for (int64_t i = part.begin; i < part.end; ++i) maximum = Larger(maximum, std::abs(Get(op.weight_P, i)));
      Put(op.maxima_WQ, column, maximum);
      continue;
    }
    for (int64_t w = 0; w < op.maxima_WQ.dim(0); ++w) {
      maximum = Larger(maximum, Get(op.maxima_WQ, RowOffset(op.maxima_WQ, w) + column));
    }
    const float factor = Float8Factor(op.out_P.dtype, static_cast<float>(maximum));
    for (int64_t i = part.begin; i < part.end; ++i) {
      Put(op.out_P, i, static_cast<float>(Get(op.weight_P, i)) * factor);
    }
    op.scales_Q.as<float>()[q] = 1 / factor;
  }
  return absl::OkStatus();
}

absl::Status Reference(const TransposeFloat8& op) {
  const int64_t R = op.x_RC.dim(0), C = op.x_RC.dim(1);
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t c = 0; c < C; ++c) op.y_CR.as<uint8_t>()[c * R + r] = op.x_RC.as<const uint8_t>()[r * C + c];
  }
  return absl::OkStatus();
}

}  // namespace shale::reference
