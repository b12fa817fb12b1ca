// Ops that make fp8 operands of matmuls (MatMul). kernels/ops.h says what holds for all ops.
//
// R rows, C columns of a matrix. P elements of a rank's shard of a flat group, Q parameters of the group, W ranks that
// have shards of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/element_range.h"
#include "kernels/float8_scales.h"
#include "kernels/op.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/rope.h"
#include "kernels/tensor.h"

namespace shale {

// [Note: sources of fp8] AbsMax and QuantizeFloat8 work on a matrix [R, C]. It is their operand x, or it is computed
// from x on the way, by the formula of the op that would otherwise have written it for them to read:
//   kMatrix        x itself
//   kNorm          y of RmsNormForward. x is the tensor that it normalizes: its `sum`, or its x without a residual
//   kLayerNorm     y of LayerNormForward, from the same x
//   kRope          x of Rope with `inverse`, which rotates the first columns of each row. x is the matrix before that
//   kGelu          y of GeluForward. x is its x
//   kGeluGradient  d_x of GeluBackward. x is its x
//   kGate          y of SwiGluForward. x is its gate_up, [R, 2C]
//   kGateGradient  d_gate_up of SwiGluBackward. x is its gate_up
// Each number is rounded to act before it is used, as that op stores it. So results have the bits that they would have
// if the op had run, on the same device.
//
// Only kMatrix takes f32. With a gate the rows of x are contiguous. The sources that forward has, which are norms,
// kGelu and kGate, have the format f8e4m3.
struct Float8Source {
  enum class Kind : uint8_t { kMatrix, kNorm, kLayerNorm, kRope, kGelu, kGeluGradient, kGate, kGateGradient };
  // Which rows and columns kRope rotates, and by which angles: a row is a token of a sequence, and its first heads x
  // head_width columns are heads.
  struct Rotation {
    int64_t sequence_length = 0, heads = 0, head_width = 0;
    double theta = 10000;
    RopeScaling scaling;
    int64_t columns() const { return heads * head_width; }
  };
  Kind kind = Kind::kMatrix;
  Tensor weight_C;          // act, of norms
  Tensor bias_C;            // act, of kLayerNorm
  Tensor mean_R;            // f32, of kLayerNorm
  Tensor rstd_R;            // f32, of norms
  Tensor d_y_RF;            // act, of kGeluGradient, F = C, and of kGateGradient, F = C / 2
  Tensor position_ids_BS;   // i32, optional, of kRope, as in Rope
  float weight_offset = 0;  // As in RmsNormForward.
  GateKind gate = GateKind::kSilu;
  GeluKind gelu = GeluKind::kTanh;
  Rotation rotation;

  // Returns whether the format is always f8e4m3.
  bool is_of_forward() const {
    return kind == Kind::kNorm || kind == Kind::kLayerNorm || kind == Kind::kGelu || kind == Kind::kGate;
  }
  // Returns the number of columns of the matrix that is computed from x.
  int64_t ColumnsOf(const Tensor& x) const { return kind == Kind::kGate ? x.dim(1) / 2 : x.dim(1); }
  // Returns the op that would have rotated `matrix`, of the shape of x. REQUIRES: kind is kRope.
  Rope RopeOf(const Tensor& matrix) const {
    const Tensor heads = matrix.Slice(1, 0, rotation.columns()).SplitLast(rotation.heads, rotation.head_width);
    return {.x_BSHD = heads.SplitFirst(matrix.dim(0) / rotation.sequence_length),
            .position_ids_BS = position_ids_BS,
            .theta = rotation.theta,
            .scaling = rotation.scaling,
            .inverse = true};
  }
  template <class Self, class Visitor>
  static void Visit(Self& source, Visitor&& v) {
    v("weight", source.weight_C, Access::kRead);
    v("bias", source.bias_C, Access::kRead);
    v("mean", source.mean_R, Access::kRead);
    v("rstd", source.rstd_R, Access::kRead);
    v("d_y", source.d_y_RF, Access::kRead);
    v("position_ids", source.position_ids_BS, Access::kRead);
  }
};
constexpr absl::string_view ToString(Float8Source::Kind kind) {
  constexpr absl::string_view kNames[] = {"matrix", "norm",          "layer_norm", "rope",
                                          "gelu",   "gelu_gradient", "gate",       "gate_gradient"};
  return kNames[static_cast<int>(kind)];
}

// maximum = the largest |m|, where m is the matrix of `source`. If a number of it is not a number, neither is the
// maximum. No sum is involved, so of a given matrix its bits are the same on every device.
struct AbsMax {
  static constexpr absl::string_view kName = "AbsMax";
  Tensor x_RC;       // act, rows may be strided
  Tensor maximum_1;  // f32
  Float8Source source;
  int64_t columns() const { return source.ColumnsOf(x_RC); }
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("x", op.x_RC, Access::kRead);
    Float8Source::Visit(op.source, v);
    v("maximum", op.maximum_1, Access::kWrite);
  }
};

// out = m * factor in fp32, rounded to its format, where m is the matrix of `source`: x, unless that says otherwise.
// What is beyond the format becomes its largest value. `transposed` is the transpose of m, quantized likewise. scale =
// 1 / factor. kernels/float8.h has the formats, and the formula of the factor ([Note: scales of fp8]). Of a given
// matrix the bits are the same on every device, except those of NaNs.
//
// With kOne there is one factor, that of `maximum`. Otherwise each tile or block of out has its own, that of its
// maximum, and so has each of `transposed` (kernels/float8_scales.h). With kTiles the elements of `transposed` are not
// those of out: its tiles lie along the columns of m.
struct QuantizeFloat8 {
  static constexpr absl::string_view kName = "QuantizeFloat8";
  Tensor x_RC;               // act, rows may be strided
  Tensor maximum_1;          // f32, of AbsMax; only with kOne
  Tensor out_RC;             // f8e4m3 or f8e5m2; optional
  Tensor transposed_CR;      // of the dtype of out; optional, but one of the two is given
  Tensor scale_1;            // f32; only with kOne
  Tensor out_scales;         // f32, of the shape of Float8ScaleMatrix; there if out is, unless `scales` is kOne
  Tensor transposed_scales;  // the same of transposed
  Float8Scales scales = Float8Scales::kOne;
  Float8Source source;
  int64_t columns() const { return source.ColumnsOf(x_RC); }
  // The scales of out, and those of transposed.
  const Tensor& scale_of_out() const { return scales == Float8Scales::kOne ? scale_1 : out_scales; }
  const Tensor& scale_of_transposed() const { return scales == Float8Scales::kOne ? scale_1 : transposed_scales; }
  // Returns the dtype of out and transposed.
  DType format() const { return (out_RC.present() ? out_RC : transposed_CR).dtype; }
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("x", op.x_RC, Access::kRead);
    Float8Source::Visit(op.source, v);
    v("maximum", op.maximum_1, Access::kRead);
    v("out", op.out_RC, Access::kWrite);
    v("transposed", op.transposed_CR, Access::kWrite);
    v("scale", op.scale_1, Access::kWrite);
    v("out_scales", op.out_scales, Access::kWrite);
    v("transposed_scales", op.transposed_scales, Access::kWrite);
  }
};

// Quantizes a rank's shard of a flat group to f8e4m3, with the codes and the scales that QuantizeFloat8 gives each
// whole parameter. It has two stages, between which the ranks gather `maxima`:
//   kMaxima     maxima = for each parameter the largest |w| of its elements in the shard: NaN if one is NaN, 0 if the
//               shard has none of its elements
//   kQuantize   out = w * factor, rounded as by QuantizeFloat8, where the factor is that of the largest of the
//               parameter's W maxima; 0 between parameters. scales = 1 / factor.
struct QuantizeShard {
  static constexpr absl::string_view kName = "QuantizeShard";
  enum class Stage : uint8_t { kMaxima, kQuantize };
  Stage stage = Stage::kMaxima;
  Tensor weight_P;   // act
  Tensor maxima_WQ;  // f32, rows may be strided. Of kMaxima: [1, Q], those of the rank.
  Tensor out_P;      // f8e4m3, of kQuantize
  Tensor scales_Q;   // f32, of kQuantize
  std::shared_ptr<const std::vector<ElementRange>> parameters;  // Those of the group, sorted.
  int64_t shard_begin = 0;                                      // Of the shard, among the elements of the group.
  int64_t shard_stride = 0;                                     // As in Update.

  // Returns the elements of the shard that belong to a parameter. There may be none.
  ElementRange PartOf(size_t parameter) const {
    const ElementRange& whole = (*parameters)[parameter];
    const ElementRange part = Intersect({whole.begin - shard_begin, whole.end - shard_begin}, {0, weight_P.elements()});
    return part.begin < part.end ? part : ElementRange{};
  }
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("weight", op.weight_P, Access::kRead);
    v("maxima", op.maxima_WQ, op.stage == Stage::kMaxima ? Access::kWrite : Access::kRead);
    v("out", op.out_P, Access::kWrite);
    v("scales", op.scales_Q, Access::kWrite);
  }
};

// y = the transpose of x.
struct TransposeFloat8 {
  static constexpr absl::string_view kName = "TransposeFloat8";
  Tensor x_RC;  // f8e4m3 or f8e5m2
  Tensor y_CR;  // of the dtype of x
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("x", op.x_RC, Access::kRead);
    v("y", op.y_CR, Access::kWrite);
  }
};

}  // namespace shale
