#include "absl/strings/str_cat.h"
#include "engine/api/layers.h"

namespace shale {
namespace {

// Records that a view does not fit, and returns a tensor of the current unit that has `rank` dimensions.
Tensor DoesNotFit(GraphBuilder& b, const Tensor& x, int rank, absl::string_view view) {
  b.Fail(absl::InvalidArgumentError(absl::StrCat("a view of ", x.ToString(), " does not fit: ", view)));
  return b.Operand(Tensor(), rank, "a view");
}

}  // namespace

Tensor Reshape(GraphBuilder& b, const Tensor& x, std::initializer_list<int64_t> shape) {
  int64_t elements = 1;
  bool fits = x.present() && x.contiguous() && shape.size() >= 1 && shape.size() <= Tensor::kMaxRank;
  for (const int64_t n : shape) fits = fits && n >= 1 && !__builtin_mul_overflow(elements, n, &elements);
  if (fits && elements == x.elements()) return x.Reshape(shape);
  std::string sizes;
  for (const int64_t n : shape) absl::StrAppend(&sizes, sizes.empty() ? "" : ", ", n);
  return DoesNotFit(b, x, static_cast<int>(shape.size()), absl::StrCat("Reshape to [", sizes, "]"));
}

Tensor Slice(GraphBuilder& b, const Tensor& x, int axis, int64_t begin, int64_t count) {
  if (axis >= 0 && axis < x.rank && begin >= 0 && count >= 1 && begin <= x.dim(axis) && count <= x.dim(axis) - begin) {
    return x.Slice(axis, begin, count);
  }
  return DoesNotFit(b, x, x.rank, absl::StrCat("Slice of ", count, " from ", begin, " on along dimension ", axis));
}

Tensor SplitLast(GraphBuilder& b, const Tensor& x, int64_t count) {
  if (x.rank >= 1 && x.rank < Tensor::kMaxRank && count >= 1 && x.dim(-1) % count == 0 && x.stride(-1) == 1) {
    return x.SplitLast(count, x.dim(-1) / count);
  }
  return DoesNotFit(b, x, x.rank + 1, absl::StrCat("SplitLast into ", count));
}

Tensor SplitFirst(GraphBuilder& b, const Tensor& x, int64_t count) {
  if (x.rank >= 1 && x.rank < Tensor::kMaxRank && count >= 1 && x.dim(0) % count == 0) return x.SplitFirst(count);
  return DoesNotFit(b, x, x.rank + 1, absl::StrCat("SplitFirst into ", count));
}

}  // namespace shale
