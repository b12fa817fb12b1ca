// Matmuls, computed by oneDNN or by our own kernels (see CpuMatMuls).
#include "kernels/ops/matmul.h"

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/instruction_set.h"
#include "kernels/cpu/onednn_matmuls.h"
#include "kernels/cpu/packed_matmul.h"
#include "kernels/integers.h"

namespace shale::cpu {
namespace {

// Returns the distance from one row of a matrix to the next. If there is only one row, returns the length of the row,
// because its stride may be anything.
int64_t RowStride(const Tensor& t) { return t.dim(0) == 1 ? t.dim(1) : t.stride(0); }

// Lets a vector have one description, whether it is a row or a transposed column. oneDNN takes the two for one matrix
// and answers with what it made first, whose scratch may be another one.
void DescribeVectors(MatMulShape& s) {
  if (s.m == 1 && s.a_stride_k == 1) s.a_stride_m = s.k;
  if (s.n == 1 && s.b_stride_k == 1) s.b_stride_n = s.k;
  if (s.k == 1 && s.a_stride_m == 1) s.a_stride_k = 1;
  if (s.k == 1 && s.b_stride_n == 1) s.b_stride_k = 1;
}

MatMulShape ShapeOf(const MatMul& op) {
  MatMulShape shape{.m = op.m(), .n = op.n(), .k = op.k()};
  shape.a_stride_m = op.transpose_a ? 1 : RowStride(op.a);
  shape.a_stride_k = op.transpose_a ? RowStride(op.a) : 1;
  shape.b_stride_k = op.transpose_b ? 1 : RowStride(op.b);
  shape.b_stride_n = op.transpose_b ? RowStride(op.b) : 1;
  shape.c_stride_m = RowStride(op.c_MN);
  shape.dtype = op.a.dtype;
  shape.c_dtype = op.c_MN.dtype;
  if (op.is_float8()) {
    shape.dtype = op.bias_N.present() ? op.bias_N.dtype : op.c_MN.dtype;
    shape.a_float8 = op.a.dtype;
    shape.b_float8 = op.b.dtype;
    shape.scales = op.scales;
  }
  shape.bias = op.bias_N.present();
  shape.accumulate = op.accumulate;
  shape.scale = op.scale;
  DescribeVectors(shape);
  return shape;
}

// Returns whether our own kernels compute this matmul of f32 faster than oneDNN's kernels of AVX-512. That is so for a
// transposed a with long rows, of which each of oneDNN's tiles copies a short part: on an Emerald Rapids, with 512 or
// 768 columns of a, our kernels reach 0.82 to 0.98 of oneDNN's speed, and with 1,536 to 50,257 columns 1.05 to 1.26.
bool HasLongRowsOfA(const MatMul& op) {
  constexpr int64_t kMostColumns = 1024;
  return op.a.dtype == DType::kFloat32 && op.transpose_a && op.m() > kMostColumns &&
         UsedInstructionSet() >= InstructionSet::kAvx512;
}

// Returns whether our own kernels compute this matmul. They alone read f16 and fp8.
bool IsPacked(const MatMul& op, const Context& context) {
  return context.cpu_matmuls == CpuMatMuls::kPacked || op.a.dtype == DType::kFloat16 || op.is_float8() ||
         (op.a.dtype == DType::kBFloat16 && !context.onednn->has_bfloat16()) || HasLongRowsOfA(op);
}

PackedMatMul PackedOf(const MatMul& op, const Context& context) { return {ShapeOf(op), context.team->threads()}; }

}  // namespace

int64_t ScratchBytesOf(const MatMul& op, const Context& context) {
  const bool packed_elsewhere = op.packed_b.present();
  if (IsPacked(op, context)) return PackedOf(op, context).scratch_bytes(packed_elsewhere);
  // If oneDNN refuses the matmul, PrepareOp reports it.
  return RoundUp(context.onednn->ScratchBytes(ShapeOf(op), packed_elsewhere).value_or(0), 256);
}

int64_t PackedBytesOf(const MatMul& op, const Context& context) {
  if (op.is_float8()) return 0;
  if (IsPacked(op, context)) return PackedOf(op, context).whole_packed_bytes();
  return context.onednn->PackedBytes(ShapeOf(op)).value_or(0);
}

absl::Status PrepareOp(const MatMul& op, const Context& context) {
  if (IsPacked(op, context)) return absl::OkStatus();
  return context.onednn->Prepare(ShapeOf(op));
}

absl::Status Run(const MatMul& op, Scratch scratch, const Context& context) {
  const MatMulOperands operands{.a = op.a.data,
                                .b = op.b.data,
                                .bias = op.bias_N.data,
                                .c = op.c_MN.data,
                                .scale_a = op.scale_a.as<const float>(),
                                .scale_b = op.scale_b.as<const float>(),
                                .packed_b = {op.packed_b.as<std::byte>(), op.packed_b.extent_bytes()},
                                .b_is_packed = op.b_is_packed,
                                .scratch = scratch};
  if (IsPacked(op, context)) return PackedOf(op, context).Run(operands, *context.team);
  return context.onednn->Run(ShapeOf(op), operands);
}

}  // namespace shale::cpu
