#include "kernels/op_checker.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_join.h"

namespace shale::internal {
namespace {

// Returns true if each stride spans all dimensions of smaller stride, so that no two elements overlap.
bool OverlapFree(const Tensor& t) {
  // Pairs (stride, size), sorted by stride. There are at most four, so they are inserted in order.
  std::array<std::pair<int64_t, int64_t>, Tensor::kMaxRank> dims;
  int n = 0;
  for (int i = 0; i < t.rank; ++i) {
    if (t.shape[i] <= 1) continue;
    int at = n++;
    for (; at > 0 && dims[at - 1].first > t.strides[i]; --at) dims[at] = dims[at - 1];
    dims[at] = {t.strides[i], t.shape[i]};
  }
  int64_t span = 1;
  for (int i = 0; i < n; ++i) {
    if (dims[i].first < span) return false;
    span += dims[i].first * (dims[i].second - 1);
  }
  return true;
}

bool HasLayout(const Tensor& t, Layout layout) {
  if (layout == Layout::kContiguous) return t.contiguous();
  if (layout == Layout::kDenseRows && t.dim(-1) > 1 && t.stride(-1) != 1) return false;
  return OverlapFree(t);
}

absl::string_view Describe(Layout layout) {
  switch (layout) {
    case Layout::kContiguous: return "contiguous";
    case Layout::kDenseRows: return "a dense last dimension, and rows that do not overlap";
    case Layout::kStrided: return "elements that do not overlap";
  }
  return "";
}

std::string Strides(const Tensor& t) {
  return absl::StrCat("[", absl::StrJoin(t.strides.begin(), t.strides.begin() + t.rank, ", "), "]");
}

// Describes a view as `rows` rows of `width` bytes, `period` bytes apart. If it has no such form, `regular` is false
// and the extent counts as one row.
struct Rows {
  int64_t begin = 0, width = 0, rows = 1, period = 0;
  bool regular = false;
  int64_t end() const { return begin + (rows - 1) * period + width; }
};

Rows RowsOf(const Tensor& t, int64_t begin) {
  const int64_t size = SizeOf(t.dtype);
  std::array<std::pair<int64_t, int64_t>, Tensor::kMaxRank> merged;  // (stride, size), from the last dimension outward
  int n = 0;
  for (int i = t.rank - 1; i >= 0; --i) {
    if (t.shape[i] == 1) continue;
    if (n > 0 && t.strides[i] == merged[n - 1].first * merged[n - 1].second) {
      merged[n - 1].second *= t.shape[i];
    } else {
      merged[n++] = {t.strides[i], t.shape[i]};
    }
  }
  Rows rows{.begin = begin, .width = t.extent() * size, .regular = true};
  if (n == 0 || (n == 1 && merged[0].first == 1)) return rows;
  const bool dense = merged[0].first == 1;
  if (n > 2 || (n == 2 && !dense)) {
    rows.regular = false;
    return rows;
  }
  const auto& outer = merged[n - 1];
  rows.width = (dense ? merged[0].second : 1) * size;
  rows.rows = outer.second;
  rows.period = outer.first * size;
  return rows;
}

bool SameView(const Tensor& a, const Tensor& b) {
  if (a.dtype != b.dtype || a.rank != b.rank || a.data != b.data) return false;
  if (a.data == nullptr && (a.where.symbol != b.where.symbol || a.where.offset_bytes != b.where.offset_bytes ||
                            a.where.shard_stride_bytes != b.where.shard_stride_bytes)) {
    return false;
  }
  for (int i = 0; i < a.rank; ++i) {
    if (a.shape[i] != b.shape[i] || (a.shape[i] > 1 && a.strides[i] != b.strides[i])) return false;
  }
  return true;
}

}  // namespace

bool Overlap(const Tensor& a, const Tensor& b) {
  if (a.elements() == 0 || b.elements() == 0) return false;
  int64_t from_a_to_b = 0;
  if (a.data != nullptr && b.data != nullptr) {
    from_a_to_b = static_cast<int64_t>(reinterpret_cast<uintptr_t>(b.data) - reinterpret_cast<uintptr_t>(a.data));
  } else if (a.where.symbol >= 0 && a.where.symbol == b.where.symbol &&
             a.where.shard_stride_bytes == b.where.shard_stride_bytes) {
    from_a_to_b = b.where.offset_bytes - a.where.offset_bytes;
  } else {
    return false;
  }
  const Rows x = RowsOf(a, 0);
  const Rows y = RowsOf(b, from_a_to_b);
  const int64_t y_end = y.begin + b.extent_bytes();
  if (a.extent_bytes() <= y.begin || y_end <= 0) return false;
  const int64_t period = std::max(x.period, y.period);
  const bool comparable = x.regular && y.regular && (x.period == y.period || x.rows == 1 || y.rows == 1);
  if (!comparable || period == 0) return true;
  // The rows of both views repeat with the same period, so it is enough to compare their offsets within a period.
  const int64_t shift = ((y.begin % period) + period) % period;
  return shift < x.width || shift + y.width > period;
}

void OpChecker::Fail(absl::string_view message) {
  if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(op_, ": ", message));
}

void OpChecker::CheckShape(absl::string_view name, const Tensor& tensor, absl::string_view dtype, bool dtype_fits,
                           std::initializer_list<Dim*> dims, Layout layout) {
  if (!ok()) return;
  std::string wanted = absl::StrCat(dtype, "[");
  bool fits = dtype_fits && tensor.present() && tensor.rank == static_cast<int>(dims.size());
  int i = 0;
  for (Dim* dim : dims) {
    absl::StrAppend(&wanted, i > 0 ? ", " : "", dim->name);
    if (dim->size >= 0) {
      absl::StrAppend(&wanted, dim->name.empty() ? "" : "=", dim->size);
      fits = fits && tensor.shape[i] == dim->size;
    } else {
      fits = fits && tensor.shape[i] >= dim->minimum;
    }
    ++i;
  }
  absl::StrAppend(&wanted, "]");
  if (!tensor.present()) return Fail(absl::StrCat(name, " is missing; wanted ", wanted));
  if (!fits) return Fail(absl::StrCat(name, " is ", tensor.ToString(), "; wanted ", wanted));
  if (!HasLayout(tensor, layout)) {
    return Fail(absl::StrCat(name, " is ", tensor.ToString(), " with strides ", Strides(tensor), "; wanted ",
                             Describe(layout)));
  }
  i = 0;
  for (Dim* dim : dims) dim->size = tensor.shape[i++];
}

void OpChecker::Act(absl::string_view name, const Tensor& tensor, Float& act, std::initializer_list<Dim*> dims,
                    Layout layout) {
  if (act.is_known) {
    CheckShape(name, tensor, ToString(act.dtype), tensor.dtype == act.dtype, dims, layout);
    return;
  }
  CheckShape(name, tensor, "f32, bf16 or f16 ", IsComputeDType(tensor.dtype), dims, layout);
  act = {.is_known = true, .dtype = tensor.dtype};
}

void OpChecker::Typed(absl::string_view name, const Tensor& tensor, DType dtype, std::initializer_list<Dim*> dims,
                      Layout layout) {
  CheckShape(name, tensor, ToString(dtype), tensor.dtype == dtype, dims, layout);
}

void OpChecker::ActOrFloat(absl::string_view name, const Tensor& tensor, std::initializer_list<Dim*> dims,
                           Layout layout) {
  if (tensor.dtype == DType::kFloat32) return Typed(name, tensor, DType::kFloat32, dims, layout);
  Act(name, tensor, dims, layout);
}

bool OpChecker::Allowed(absl::string_view output, absl::string_view operand) const {
  for (const auto& [a, b] : allowed_) {
    if (a == output && b == operand) return true;
  }
  return false;
}

void OpChecker::CheckOverlaps(const std::vector<Operand>& operands) {
  if (!ok()) return;
  for (const Operand& out : operands) {
    if (out.access == Access::kRead || !out.tensor->present()) continue;
    for (const Operand& other : operands) {
      if (other.tensor == out.tensor || !other.tensor->present()) continue;
      if (!Overlap(*out.tensor, *other.tensor)) continue;
      const bool allowed = Allowed(out.name, other.name) || Allowed(other.name, out.name);
      if (allowed && SameView(*out.tensor, *other.tensor)) continue;
      Fail(absl::StrCat(out.name, " overlaps ", other.name,
                        allowed ? "; wanted the same view or separate memory" : "; wanted separate memory"));
      return;
    }
  }
}

}  // namespace shale::internal
