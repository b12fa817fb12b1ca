// Matmuls, and the gradient of their bias. kernels/ops.h says what holds for all ops.
//
// M, N and K sizes of a matmul, T tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/dtype.h"
#include "kernels/float8_scales.h"
#include "kernels/op.h"
#include "kernels/tensor.h"

namespace shale {

// N and K of a matmul of fp8 matrices are multiples of this number.
inline constexpr int64_t kFloat8Multiple = 16;
// So is M, of this one, if the matrices have tiles or blocks of scales.
inline constexpr int64_t kFloat8RowMultiple = 4;

// c = scale * op(a) op(b) + bias, or c += scale * op(a) op(b), where op transposes if transpose_a or transpose_b is
// set. a is [M, K], or [K, M] if transposed; b is [K, N], or [N, K] if transposed. Rows may be strided; the last
// dimension is dense. Accumulates in fp32, and rounds c once.
//
// a and b may be fp8 (kernels/float8.h), with the scales that QuantizeFloat8 wrote: then c = A B^T + bias, or c += A
// B^T, where A and B are a and b, each element times its scale. `scales` says which these are: kOne, or kTiles of both,
// or kBlocks of b and kTiles of a. This is so only with transpose_b and without transpose_a, without packed_b, with a
// `scale` of 1, with at least one operand in e4m3, and with N, K and distances of rows of a and b that are multiples of
// 16 (kFloat8Multiple). Without kOne, M is a multiple of 4 (kFloat8RowMultiple). `fast_accumulation` allows a device to
// add up the products in fewer bits than fp32 has, as the tensor cores of Hopper do; it changes nothing on other
// devices, and goes only with kOne.
//
// packed_b holds a copy of b in the order in which the device's kernels read it (see Ops::PackedBytes). The op writes
// packed_b, or reads it if b_is_packed is set; c gets the same bits either way.
struct MatMul {
  static constexpr absl::string_view kName = "MatMul";
  Tensor a;                 // act, or f8e4m3 or f8e5m2
  Tensor b;                 // f32, bf16 or f16: that of a, or another one if the device has such kernels; fp8 if a is
  Tensor bias_N;            // act, optional; not together with accumulate or with another scale than 1
  Tensor c_MN;              // act or f32
  Tensor packed_b;          // i16, PackedBytes long, contiguous; optional
  Tensor scale_a, scale_b;  // f32, both if a and b are fp8, else absent: [1], or as Float8ScaleMatrix says
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
  bool b_is_packed = false;                  // packed_b was written by a matmul with the same b, transpose_b and dtype
  bool fast_accumulation = false;            // Only for fp8.
  Float8Scales scales = Float8Scales::kOne;  // Only for fp8.
  float scale = 1;
  bool is_float8() const { return IsFloat8(a.dtype); }
  Float8ScaleMatrix scales_of_a() const {
    return Float8ScaleMatrix::Of(scales == Float8Scales::kOne ? scales : Float8Scales::kTiles, m(), k());
  }
  Float8ScaleMatrix scales_of_b() const { return Float8ScaleMatrix::Of(scales, n(), k()); }
  int64_t m() const { return c_MN.shape[0]; }
  int64_t n() const { return c_MN.shape[1]; }
  int64_t k() const { return a.shape[transpose_a ? 0 : 1]; }
  void MakeFirst() { accumulate = b_is_packed = false; }
  std::vector<int64_t> LibraryAttributes() const;
  double flops() const { return 2.0 * static_cast<double>(m()) * static_cast<double>(n()) * static_cast<double>(k()); }
  int64_t ElementsMoved(const Tensor& operand, Access) const {
    return &operand == &b && b_is_packed ? 0 : operand.elements();
  }
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("a", op.a, Access::kRead);
    v("b", op.b, Access::kRead);
    v("bias", op.bias_N, Access::kRead);
    v("c", op.c_MN, op.accumulate ? Access::kReadWrite : Access::kWrite);
    v("packed_b", op.packed_b, op.b_is_packed ? Access::kRead : Access::kWrite);
    v("scale_a", op.scale_a, Access::kRead);
    v("scale_b", op.scale_b, Access::kRead);
  }
};

// d_bias (+)= column sums of d_out.
struct BiasBackward {
  static constexpr absl::string_view kName = "BiasBackward";
  Tensor d_out_TN;  // act, rows may be strided
  Tensor d_bias_N;  // f32
  bool accumulate = false;
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("d_out", op.d_out_TN, Access::kRead);
    v("d_bias", op.d_bias_N, op.accumulate ? Access::kReadWrite : Access::kWrite);
  }
};

}  // namespace shale
