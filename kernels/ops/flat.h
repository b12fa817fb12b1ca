// Ops on flat vectors, and on tensors whose dimensions do not matter. kernels/ops.h says what holds for all ops.
//
// N elements of a vector, W rows of a matrix.
#pragma once

#include <cstdint>
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
  Tensor x_N;      // f32, bf16 or f16
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
//
// A bf16 total is widened, added to in fp32, and rounded stochastically, by the bits of a RoundingStream
// (kernels/counter_random.h) of `seed`, the update number update_count + 1, `micro_batch`, `group` and `stream`.
// Element i is element `shard_begin + i` of the group; shard_begin is a multiple of kRandomBlock. An op on a part of
// the shard has the element of the shard at which that part begins, also such a multiple. Only such a total has
// update_count, micro_batch and the members after them.
struct Accumulate {
  static constexpr absl::string_view kName = "Accumulate";
  Tensor x_N;      // f32
  Tensor total_N;  // f32 or bf16
  bool accumulate = false;
  Tensor update_count_1;  // i64, given if and only if total is bf16
  Tensor micro_batch_1;   // i64, optional; absent: 0
  int64_t shard_begin = 0;
  int64_t shard_stride = 0;  // As in Update.
  int64_t part_begin = 0;    // Of the part, in the shard; SetShard adds it to shard_begin.
  bool by_rank = false;      // Whether each rank rounds with bits of its own: SetShard then counts ranks, not shards.
  uint64_t seed = 0;
  int32_t group = 0;
  uint32_t stream = 0;  // RoundingStream::tensor
  bool rounds() const { return total_N.dtype == DType::kBFloat16; }
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("x", op.x_N, Access::kRead);
    v("update_count", op.update_count_1, Access::kRead);
    v("micro_batch", op.micro_batch_1, Access::kRead);
    v("total", op.total_N, op.accumulate ? Access::kReadWrite : Access::kWrite);
  }
};

// total (+)= the sum of the rows of x, which is computed in fp32 from the first row to the last.
struct SumRows {
  static constexpr absl::string_view kName = "SumRows";
  Tensor x_WN;     // bf16, W >= 1
  Tensor total_N;  // f32
  bool accumulate = false;
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("x", op.x_WN, Access::kRead);
    v("total", op.total_N, op.accumulate ? Access::kReadWrite : Access::kWrite);
  }
};

// Zeroes the given ranges of a flat vector (the gaps between parameters). The ranges are sorted and disjoint.
struct ZeroRanges {
  static constexpr absl::string_view kName = "ZeroRanges";
  Tensor x_N;  // f32 or bf16
  std::shared_ptr<const std::vector<ElementRange>> ranges;
  const std::vector<ElementRange>* written_ranges() const { return ranges.get(); }
  int64_t ElementsMoved(const Tensor&, Access access) const {
    int64_t elements = 0;
    for (const ElementRange& range : *ranges) elements += range.end - range.begin;
    return access == Access::kRead ? 0 : elements;
  }
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("x", op.x_N, Access::kReadWrite);
  }
};

}  // namespace shale
