// Checks the operands of matmuls, of the gradient of their bias, and of the ops that make fp8 operands.
#include <cmath>

#include "kernels/op_checker.h"
#include "kernels/ops/float8.h"
#include "kernels/ops/matmul.h"

namespace shale::internal {
namespace {

constexpr absl::string_view kFormats = "f8e4m3 or f8e5m2";

// Requires sizes and distances of rows that are multiples of kFloat8Multiple.
void CheckFloat8Matrix(OpChecker& c, absl::string_view name, const Tensor& t, absl::string_view rows, Dim& R, Dim& K) {
  c.Require(IsFloat8(t.dtype), name, " is ", t.ToString(), "; wanted ", kFormats, ", as the other matrix is fp8");
  c.Typed(name, t, t.dtype, {&R, &K}, Layout::kDenseRows);
  if (!c.ok()) return;
  c.Require(K.size % kFloat8Multiple == 0, name, " is ", t.ToString(), "; wanted K to be a multiple of ",
            kFloat8Multiple, " in a matmul of fp8 matrices");
  c.Require(rows != "N" || R.size % kFloat8Multiple == 0, name, " is ", t.ToString(), "; wanted N to be a multiple of ",
            kFloat8Multiple, " in a matmul of fp8 matrices");
  c.Require(t.dim(0) == 1 || t.stride(0) % kFloat8Multiple == 0, name, " has rows ", t.stride(0),
            " elements apart; wanted a multiple of ", kFloat8Multiple, " in a matmul of fp8 matrices");
}

// Requires the scales of a matrix in fp8.
void CheckScales(OpChecker& c, absl::string_view name, const Tensor& t, const Float8ScaleMatrix& scales) {
  Dim one{"", 1}, rows{"", scales.rows}, columns{"", scales.columns};
  if (scales.scales == Float8Scales::kOne) {
    c.Typed(name, t, DType::kFloat32, {&one});
  } else {
    c.Typed(name, t, DType::kFloat32, {&rows, &columns});
  }
}

void CheckFloat8Matrices(OpChecker& c, const MatMul& op, Dim& M, Dim& N, Dim& K) {
  c.Require(op.transpose_b && !op.transpose_a, "transpose_a is ", op.transpose_a, " and transpose_b is ",
            op.transpose_b, "; wanted transpose_b alone, because fp8 matrices are multiplied as a b^T");
  CheckFloat8Matrix(c, "a", op.a, "M", M, K);
  CheckFloat8Matrix(c, "b", op.b, "N", N, K);
  c.Require(op.a.dtype == DType::kFloat8E4M3 || op.b.dtype == DType::kFloat8E4M3, "a is ", op.a.ToString(),
            " and b is ", op.b.ToString(), "; wanted one of them in f8e4m3");
  c.Require(op.scale == 1, "scale is ", op.scale, " for fp8 matrices; wanted 1: scale_a and scale_b scale them");
  c.Require(!op.packed_b.present(), "packed_b is given for fp8 matrices; wanted none");
  // Below, shapes of a and b are known to fit.
  if (!c.ok()) return;
  const bool one = op.scales == Float8Scales::kOne;
  CheckScales(c, "scale_a", op.scale_a, Float8ScaleMatrix::Of(one ? op.scales : Float8Scales::kTiles, M.size, K.size));
  CheckScales(c, "scale_b", op.scale_b, Float8ScaleMatrix::Of(op.scales, N.size, K.size));
  c.Require(one || M.size % kFloat8RowMultiple == 0, "a is ", op.a.ToString(), "; wanted M to be a multiple of ",
            kFloat8RowMultiple, " in a matmul of fp8 matrices with blockwise scales");
  c.Require(one || !op.fast_accumulation, "fast_accumulation is set for fp8 matrices with blockwise scales; wanted it ",
            "only if each has one scale");
}

void CheckMatrices(OpChecker& c, const MatMul& op, Dim& M, Dim& N, Dim& K) {
  Float b;  // Of its own: a device may multiply matrices of two dtypes (Ops::CheckAvailable).
  if (op.transpose_a) {
    c.Act("a", op.a, {&K, &M}, Layout::kDenseRows);
  } else {
    c.Act("a", op.a, {&M, &K}, Layout::kDenseRows);
  }
  if (op.transpose_b) {
    c.Act("b", op.b, b, {&N, &K}, Layout::kDenseRows);
  } else {
    c.Act("b", op.b, b, {&K, &N}, Layout::kDenseRows);
  }
  for (const auto& [name, scale] :
       {std::pair<absl::string_view, const Tensor*>{"scale_a", &op.scale_a}, {"scale_b", &op.scale_b}}) {
    c.Require(!scale->present(), name, " is given, and a is ", op.a.ToString(), "; wanted it for fp8 matrices only");
  }
  c.Require(op.scales == Float8Scales::kOne, "scales are not kOne, and a is ", op.a.ToString(),
            "; wanted others for fp8 matrices only");
  c.Require(!op.fast_accumulation, "fast_accumulation is set, and a is ", op.a.ToString(),
            "; wanted it for fp8 matrices only");
}

}  // namespace

void Check(OpChecker& c, const MatMul& op) {
  Dim M{"M"}, N{"N"}, K{"K"};
  if (op.is_float8()) {
    CheckFloat8Matrices(c, op, M, N, K);
  } else {
    CheckMatrices(c, op, M, N, K);
  }
  if (op.bias_N.present()) {
    c.Act("bias", op.bias_N, {&N});
    c.Require(!op.accumulate, "bias is given together with accumulate; wanted one or the other");
    c.Require(op.scale == 1, "bias is given together with scale ", op.scale, "; wanted one or the other");
  }
  c.Require(std::isfinite(op.scale), "scale is ", op.scale, "; wanted a finite number");
  c.ActOrFloat("c", op.c_MN, {&M, &N}, Layout::kDenseRows);
  Dim packed{"packed"};
  if (op.packed_b.present()) c.Typed("packed_b", op.packed_b, DType::kInt16, {&packed});
  c.Require(op.packed_b.present() || !op.b_is_packed, "b_is_packed is set, but packed_b is missing");
}

void Check(OpChecker& c, const BiasBackward& op) {
  Dim T{"T"}, N{"N"};
  c.Act("d_out", op.d_out_TN, {&T, &N}, Layout::kDenseRows);
  c.Typed("d_bias", op.d_bias_N, DType::kFloat32, {&N});
}

namespace {

// Checks what kRope rotates of a matrix of R rows and C columns.
void CheckRotation(OpChecker& c, const Tensor& x, const Float8Source& source, const Dim& R, const Dim& C) {
  const Float8Source::Rotation& of = source.rotation;
  c.Require(of.sequence_length >= 1 && R.size % of.sequence_length == 0, "x is ", x.ToString(),
            "; wanted rows that are whole sequences of ", of.sequence_length, " tokens");
  c.Require(of.heads >= 1 && of.head_width >= 1 && of.columns() <= C.size, "x is ", x.ToString(), "; wanted room for ",
            of.heads, " heads of width ", of.head_width);
  CheckAngles(c, of.head_width, of.theta, of.scaling);
  if (!c.ok() || !source.position_ids_BS.present()) return;
  Dim B{"B", R.size / of.sequence_length}, S{"S", of.sequence_length};
  c.Typed("position_ids", source.position_ids_BS, DType::kInt32, {&B, &S});
}

// Checks the matrix of a source, and what it is computed from ([Note: sources of fp8]). Sets its dimensions.
void CheckFloat8Source(OpChecker& c, const Tensor& x, const Float8Source& source, Dim& R, Dim& C) {
  using Kind = Float8Source::Kind;
  const Kind kind = source.kind;
  const bool layer_norm = kind == Kind::kLayerNorm, norm = kind == Kind::kNorm || layer_norm;
  const bool gradient = kind == Kind::kGateGradient || kind == Kind::kGeluGradient;
  if (kind != Kind::kGate && kind != Kind::kGateGradient) {
    c.Act("x", x, {&R, &C}, Layout::kDenseRows);
    if (gradient) c.Act("d_y", source.d_y_RF, {&R, &C});
  } else {
    Dim whole{"2F"};
    c.Act("x", x, {&R, &whole});
    c.Require(whole.size % 2 == 0, "x is ", x.ToString(), "; wanted an even number of columns: gates, then ups");
    Dim F{"F", whole.size / 2};
    if (gradient) c.Act("d_y", source.d_y_RF, {&R, &F});
    C.size = gradient ? whole.size : F.size;
  }
  if (norm) {
    c.Act("weight", source.weight_C, {&C});
    if (layer_norm) c.Act("bias", source.bias_C, {&C});
    if (layer_norm) c.Typed("mean", source.mean_R, DType::kFloat32, {&R});
    c.Typed("rstd", source.rstd_R, DType::kFloat32, {&R});
  }
  if (kind == Kind::kRope) CheckRotation(c, x, source, R, C);
  c.Require(source.kind == Kind::kMatrix || x.dtype != DType::kFloat32, "x is ", x.ToString(),
            "; wanted bf16 or f16, because the source is ", ToString(source.kind));
  const struct {
    absl::string_view name;
    const Tensor& tensor;
    bool wanted;
  } operands[] = {{"weight", source.weight_C, norm},   {"bias", source.bias_C, layer_norm},
                  {"mean", source.mean_R, layer_norm}, {"rstd", source.rstd_R, norm},
                  {"d_y", source.d_y_RF, gradient},    {"position_ids", source.position_ids_BS, kind == Kind::kRope}};
  for (const auto& [name, tensor, wanted] : operands) {
    c.Require(wanted || !tensor.present(), name, " is ", tensor.ToString(), "; wanted none, because the source is ",
              ToString(source.kind));
  }
}

}  // namespace

void Check(OpChecker& c, const AbsMax& op) {
  Dim R{"R"}, C{"C"}, one{"", 1};
  CheckFloat8Source(c, op.x_RC, op.source, R, C);
  c.Typed("maximum", op.maximum_1, DType::kFloat32, {&one});
}

void Check(OpChecker& c, const QuantizeFloat8& op) {
  Dim R{"R"}, C{"C"};
  CheckFloat8Source(c, op.x_RC, op.source, R, C);
  c.Require(op.out_RC.present() || op.transposed_CR.present(),
            "out and transposed are both missing; wanted at least one of them");
  const bool has_out = op.out_RC.present(), one = op.scales == Float8Scales::kOne;
  const Tensor& first = has_out ? op.out_RC : op.transposed_CR;
  c.Require(IsFloat8(first.dtype), has_out ? "out" : "transposed", " is ", first.ToString(), "; wanted ", kFormats);
  c.Require(!op.source.is_of_forward() || first.dtype == DType::kFloat8E4M3, has_out ? "out" : "transposed", " is ",
            first.ToString(), "; wanted f8e4m3, because the source is ", ToString(op.source.kind));
  if (has_out) c.Typed("out", op.out_RC, first.dtype, {&R, &C});
  if (op.transposed_CR.present()) c.Typed("transposed", op.transposed_CR, first.dtype, {&C, &R});
  const struct {
    absl::string_view name;
    const Tensor& tensor;
    bool wanted;
    Float8ScaleMatrix scales;
  } operands[] = {
      {"maximum", op.maximum_1, one, {}},
      {"scale", op.scale_1, one, {}},
      {"out_scales", op.out_scales, !one && has_out, Float8ScaleMatrix::Of(op.scales, R.size, C.size)},
      {"transposed_scales", op.transposed_scales, !one && op.transposed_CR.present(),
       Float8ScaleMatrix::Of(op.scales, C.size, R.size)},
  };
  for (const auto& [name, tensor, wanted, scales] : operands) {
    if (!c.ok()) return;
    if (wanted) CheckScales(c, name, tensor, scales);
    c.Require(wanted || !tensor.present(), name, " is ", tensor.ToString(), "; wanted none, because ",
              one ? "the matrix has one scale" : "tiles and blocks have their own scales, beside the matrix of each");
  }
}

void Check(OpChecker& c, const TransposeFloat8& op) {
  Dim R{"R"}, C{"C"};
  c.Require(IsFloat8(op.x_RC.dtype), "x is ", op.x_RC.ToString(), "; wanted ", kFormats);
  c.Typed("x", op.x_RC, op.x_RC.dtype, {&R, &C});
  c.Typed("y", op.y_CR, op.x_RC.dtype, {&C, &R});
}

}  // namespace shale::internal
