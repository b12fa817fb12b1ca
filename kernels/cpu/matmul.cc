// Matmuls, computed by oneDNN. If oneDNN has no bf16 kernels for the processor, operands are widened to f32 in scratch.
#include "kernels/ops/matmul.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/onednn_matmuls.h"
#include "kernels/cpu/parallel.h"
#include "kernels/integers.h"

namespace shale::cpu {
namespace {

// Returns the distance from one row of a matrix to the next. If there is only one row, returns the length of the row,
// because its stride may be anything.
int64_t RowStride(const Tensor& t) { return t.dim(0) == 1 ? t.dim(1) : t.stride(0); }

MatMulShape ShapeOf(const MatMul& op) {
  MatMulShape shape{.m = op.m(), .n = op.n(), .k = op.k()};
  shape.a_stride_m = op.transpose_a ? 1 : RowStride(op.a);
  shape.a_stride_k = op.transpose_a ? RowStride(op.a) : 1;
  shape.b_stride_k = op.transpose_b ? 1 : RowStride(op.b);
  shape.b_stride_n = op.transpose_b ? RowStride(op.b) : 1;
  shape.c_stride_m = RowStride(op.c_MN);
  shape.dtype = op.a.dtype;
  shape.c_dtype = op.c_MN.dtype;
  shape.bias = op.bias_N.present();
  shape.accumulate = op.accumulate;
  return shape;
}

bool MustWiden(const MatMul& op, const Context& context) {
  return op.a.dtype == DType::kBFloat16 && !context.matmuls->has_bfloat16();
}

// Takes pieces of scratch, each aligned to 256 bytes. If `data` is null, it only counts bytes.
class Pieces {
 public:
  explicit Pieces(std::byte* data) : data_(data) {}
  void* Take(int64_t size_bytes) {
    void* piece = data_ == nullptr ? nullptr : data_ + taken_;
    taken_ += RoundUp(size_bytes, 256);
    return piece;
  }
  int64_t taken() const { return taken_; }
  Scratch Rest(Scratch whole) const { return {whole.data + taken_, whole.size_bytes - taken_}; }

 private:
  std::byte* data_;
  int64_t taken_ = 0;
};

Tensor F32Like(const Tensor& t, Pieces& pieces) {
  if (!t.present()) return t;
  Tensor wide = t.rank == 1 ? Tensor::Contiguous(DType::kFloat32, {t.dim(0)})
                            : Tensor::Contiguous(DType::kFloat32, {t.dim(0), t.dim(1)});
  wide.data = pieces.Take(wide.extent_bytes());
  return wide;
}

// Returns `op` with f32 operands in scratch, including c unless that is f32 already.
MatMul Widened(const MatMul& op, Pieces& pieces) {
  MatMul wide = op;
  wide.a = F32Like(op.a, pieces);
  wide.b = F32Like(op.b, pieces);
  wide.bias_N = F32Like(op.bias_N, pieces);
  if (op.c_MN.dtype == DType::kBFloat16) wide.c_MN = F32Like(op.c_MN, pieces);
  return wide;
}

// Sets to = convert(from), row by row. Does nothing if `from` is absent.
template <class To, class From, class Convert>
void ConvertRows(const Tensor& from, const Tensor& to, int threads, const Convert& convert) {
  if (!from.present()) return;
  const int64_t rows = from.rank == 1 ? 1 : from.dim(0), columns = from.dim(-1);
  ParallelFor(threads, rows, RowsPerBlock(columns), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const From* source = from.as<const From>() + r * from.stride(0);
      To* target = to.as<To>() + r * to.stride(0);
      for (int64_t i = 0; i < columns; ++i) target[i] = convert(source[i]);
    }
  });
}

}  // namespace

int64_t ScratchBytesOf(const MatMul& op, const Context& context) {
  Pieces pieces(nullptr);
  const MatMul matmul = MustWiden(op, context) ? Widened(op, pieces) : op;
  // If oneDNN refuses the matmul, PrepareOp reports it.
  pieces.Take(context.matmuls->ScratchBytes(ShapeOf(matmul), op.packed_b.present()).value_or(0));
  return pieces.taken();
}

int64_t PackedBytesOf(const MatMul& op, const Context& context) {
  return MustWiden(op, context) ? 0 : context.matmuls->PackedBytes(ShapeOf(op)).value_or(0);
}

absl::Status PrepareOp(const MatMul& op, const Context& context) {
  Pieces pieces(nullptr);
  return context.matmuls->Prepare(ShapeOf(MustWiden(op, context) ? Widened(op, pieces) : op));
}

absl::Status Run(const MatMul& op, Scratch scratch, const Context& context) {
  Pieces pieces(scratch.data);
  MatMul matmul = op;
  if (MustWiden(op, context)) {
    matmul = Widened(op, pieces);
    const auto widen = [](BFloat16 x) { return ToFloat(x); };
    ConvertRows<float, BFloat16>(op.a, matmul.a, context.threads, widen);
    ConvertRows<float, BFloat16>(op.b, matmul.b, context.threads, widen);
    ConvertRows<float, BFloat16>(op.bias_N, matmul.bias_N, context.threads, widen);
  }
  SHALE_RETURN_IF_ERROR(context.matmuls->Run(
      ShapeOf(matmul), {.a = matmul.a.data,
                        .b = matmul.b.data,
                        .bias = matmul.bias_N.data,
                        .c = matmul.c_MN.data,
                        .packed_b = {matmul.packed_b.as<std::byte>(), matmul.packed_b.extent_bytes()},
                        .b_is_packed = matmul.b_is_packed,
                        .scratch = pieces.Rest(scratch)}));
  if (matmul.c_MN.data != op.c_MN.data) {
    ConvertRows<BFloat16, float>(matmul.c_MN, op.c_MN, context.threads, [](float x) { return RoundToBFloat16(x); });
  }
  return absl::OkStatus();
}

}  // namespace shale::cpu
