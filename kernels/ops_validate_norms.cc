// Checks the operands of the norms.
#include "kernels/op_checker.h"
#include "kernels/ops/norm.h"

namespace shale::internal {
namespace {

// The dimensions of x, which is [T, C] or [T, H, D]. CheckRows checks an operand that shares them.
struct RowDims {
  Dim T{"T"}, H{"H"}, C{"C"};
  bool heads = false;

  explicit RowDims(const Tensor& x) : heads(x.rank == 3) {}

  void CheckRows(OpChecker& c, absl::string_view name, const Tensor& t, Layout layout) {
    if (heads) {
      c.Act(name, t, {&T, &H, &C}, layout);
    } else {
      c.Act(name, t, {&T, &C}, layout);
    }
  }
  Dim R() const { return Dim{"R", heads ? T.size * H.size : T.size}; }
};

void CheckEpsilon(OpChecker& c, float epsilon) {
  c.Require(epsilon >= 0, "epsilon is ", epsilon, "; wanted 0 or more");
}

// Checks the operands that both norms have. `writes` says whether there are y, and so the weight.
template <class OpType>
RowDims CheckNormForward(OpChecker& c, const OpType& op, bool writes) {
  RowDims d(op.x);
  d.CheckRows(c, "x", op.x, Layout::kDenseRows);
  if (writes) c.Act("weight", op.weight_C, {&d.C});
  c.Require(op.residual.present() == op.sum.present(), "residual is ", op.residual.present() ? "given" : "missing",
            " and sum is ", op.sum.present() ? "given" : "missing", "; wanted both or neither");
  if (op.residual.present()) {
    d.CheckRows(c, "residual", op.residual, Layout::kContiguous);
    d.CheckRows(c, "sum", op.sum, Layout::kContiguous);
  }
  if (writes) d.CheckRows(c, "y", op.y, Layout::kDenseRows);
  Dim R = d.R();
  c.Typed("rstd", op.rstd_R, DType::kFloat32, {&R});
  CheckEpsilon(c, op.epsilon);
  c.MayBe("y", "x");
  return d;
}

template <class OpType>
RowDims CheckNormBackward(OpChecker& c, const OpType& op) {
  RowDims d(op.x);
  d.CheckRows(c, "x", op.x, Layout::kDenseRows);
  d.CheckRows(c, "d_y", op.d_y, Layout::kDenseRows);
  c.Act("weight", op.weight_C, {&d.C});
  Dim R = d.R();
  c.Typed("rstd", op.rstd_R, DType::kFloat32, {&R});
  // The rows of d_residual may be strided, because it may be d_x itself.
  if (op.d_residual.present()) d.CheckRows(c, "d_residual", op.d_residual, Layout::kDenseRows);
  d.CheckRows(c, "d_x", op.d_x, Layout::kDenseRows);
  if (op.d_weight_C.present()) c.Typed("d_weight", op.d_weight_C, DType::kFloat32, {&d.C});
  c.MayBe("d_x", "d_y");
  c.MayBe("d_x", "d_residual");
  return d;
}

}  // namespace

void Check(OpChecker& c, const RmsNormForward& op) {
  CheckNormForward(c, op, /*writes=*/op.weight_C.present() || op.y.present());
}

void Check(OpChecker& c, const RmsNormBackward& op) { CheckNormBackward(c, op); }

void Check(OpChecker& c, const LayerNormForward& op) {
  const bool writes = op.weight_C.present() || op.bias_C.present() || op.y.present();
  RowDims d = CheckNormForward(c, op, writes);
  Dim R = d.R();
  if (writes) c.Act("bias", op.bias_C, {&d.C});
  c.Typed("mean", op.mean_R, DType::kFloat32, {&R});
}

void Check(OpChecker& c, const LayerNormBackward& op) {
  RowDims d = CheckNormBackward(c, op);
  Dim R = d.R();
  c.Typed("mean", op.mean_R, DType::kFloat32, {&R});
  if (op.d_bias_C.present()) c.Typed("d_bias", op.d_bias_C, DType::kFloat32, {&d.C});
}

}  // namespace shale::internal
