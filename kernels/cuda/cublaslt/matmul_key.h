// MatMulKey: everything that decides which algorithm of cuBLASLt computes a matmul, and so its bits.
//
// cuBLASLt stores matrices by columns and Shale stores them by rows, so each sees the other's matrices transposed. The
// library therefore computes c^T [N, M] = op(b)^T op(a)^T: its A is the op's b, its B is the op's a, and its rows are
// the op's columns.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/float8_scales.h"
#include "kernels/tensor.h"

namespace shale {
struct MatMul;  // kernels/ops/matmul.h
}  // namespace shale

namespace shale::cuda {

struct MatMulKey {
  DType a = DType::kFloat32, b = DType::kFloat32, c = DType::kFloat32;
  bool transpose_a = false, transpose_b = false;
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldc = 0;  // Elements from one row to the next in memory.
  // The known alignment of each operand's first element, in bytes: a power of two up to kMaxAlignment. Without it the
  // library would assume kMaxAlignment. align_bias is 0 if `bias` is false.
  int64_t align_a = 0, align_b = 0, align_c = 0, align_bias = 0;
  bool bias = false;                         // The matmul adds the bias (the library's epilogue).
  bool accumulate = false;                   // The matmul is added to c.
  bool tf32 = false;                         // f32 operands may be rounded to 10 bits of fraction.
  bool fast = false;                         // Products of fp8 operands may be added up in fewer bits than fp32 has.
  Float8Scales scales = Float8Scales::kOne;  // Of fp8 operands (MatMul::scales).

  static constexpr int64_t kMaxAlignment = 256;
  // If rows of a bf16 c are not aligned to these bytes, the library's kernels round the product to bf16 before they add
  // the bias, and then round again (cuBLASLt 13.1.0 on an H200: errors of up to 2 units in the last place).
  static constexpr int64_t kBiasAlignment = 16;

  // Returns the key of `op`, which may be symbolic. Its key is then the same as when bound, because buffers begin at
  // multiples of 256 bytes. The library does not take a bias whose dtype is not c's, nor one in f32 with fp8 operands,
  // and rounds twice if rows of c are not aligned (kBiasAlignment). Such a bias is written to c before the matmul is
  // added, so the key then has accumulate instead of bias.
  static MatMulKey Of(const MatMul& op, bool allow_tf32);
  // Returns the largest power of two, up to kMaxAlignment, that is known to divide the address of `t`, bound or
  // symbolic, on every rank.
  static int64_t AlignmentOf(const Tensor& t);
  // Returns whether `op` has a bias that the matmul itself adds.
  static bool AddsBias(const MatMul& op);

  // "a=bf16 b=bf16 c=f32 ta=0 tb=1 m=4096 ...", with every field in a fixed order. Parse accepts exactly what ToString
  // returns.
  std::string ToString() const;
  static absl::StatusOr<MatMulKey> Parse(absl::string_view text);

  friend auto operator<=>(const MatMulKey&, const MatMulKey&) = default;
};

}  // namespace shale::cuda
