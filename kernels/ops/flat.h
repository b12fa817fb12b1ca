// Ops on flat vectors, and on tensors whose dimensions do not matter. kernels/ops.h says what holds for all ops.
//
// N elements of a vector.
#pragma once

#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/element_range.h"
#include "kernels/op.h"
#include "kernels/tensor.h"

namespace shale {

// total (+)= sum of x, in fp64, in an order that depends only on the size of x.
struct Sum {
  static constexpr absl::string_view kName = "Sum";
  Tensor x_N;      // f32
  Tensor total_1;  // f64
  bool accumulate = false;
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("x", op.x_N, Access::kRead);
    v("total", op.total_1, op.accumulate ? Access::kReadWrite : Access::kWrite);
  }
};

// total (+)= sum of squares of x, in fp64, in an order that depends only on the size of x.
struct SumSquares {
  static constexpr absl::string_view kName = "SumSquares";
  Tensor x_N;      // f32
  Tensor total_1;  // f64
  bool accumulate = false;
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("x", op.x_N, Access::kRead);
    v("total", op.total_1, op.accumulate ? Access::kReadWrite : Access::kWrite);
  }
};

// to = from, converted to the dtype of `to`: f32 to bf16 rounds to nearest even, equal dtypes copy bits.
struct Copy {
  static constexpr absl::string_view kName = "Copy";
  Tensor from, to;  // equal shapes, contiguous
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("from", op.from, Access::kRead);
    v("to", op.to, Access::kWrite);
  }
};

// out = a + b in fp32, rounded to out's dtype. out may be a or b.
struct Add {
  static constexpr absl::string_view kName = "Add";
  Tensor a, b, out;  // one dtype, act, equal shapes, contiguous
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("a", op.a, Access::kRead);
    v("b", op.b, Access::kRead);
    v("out", op.out, Access::kWrite);
  }
};

// total = x, or total += x if `accumulate` is set.
struct Accumulate {
  static constexpr absl::string_view kName = "Accumulate";
  Tensor x_N, total_N;  // f32
  bool accumulate = false;
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("x", op.x_N, Access::kRead);
    v("total", op.total_N, op.accumulate ? Access::kReadWrite : Access::kWrite);
  }
};

// Zeroes the given ranges of a flat vector (the gaps between parameters). The ranges are sorted and disjoint.
struct ZeroRanges {
  static constexpr absl::string_view kName = "ZeroRanges";
  Tensor x_N;  // f32 or bf16
  std::shared_ptr<const std::vector<ElementRange>> ranges;
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("x", op.x_N, Access::kReadWrite);
  }
};

}  // namespace shale
