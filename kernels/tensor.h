// Tensor: a view of memory, with its dtype, shape, strides and location.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "kernels/check.h"
#include "kernels/dtype.h"

namespace shale {

// The location of a tensor that is not bound to memory yet. `symbol` is the number of a value in a graph, or of a
// buffer in a program. A rank that binds its program adds `shard_stride_bytes` times the index of its shard, which
// selects its own shard of a buffer that holds all shards. `unit_mark` is 0 in finished graphs and programs ([Note: the
// mark of a unit] in engine/api/graph_builder.h).
struct Location {
  int32_t symbol = -1;
  uint32_t unit_mark = 0;
  int64_t offset_bytes = 0;
  int64_t shard_stride_bytes = 0;
  bool operator==(const Location&) const = default;
};

// A strided view of up to four dimensions. Does not own its memory. In graphs and programs it is symbolic (`data` is
// null, `where` is set); for a launch it is bound (`data` is set), and kernels read only `data`. A tensor of rank 0 is
// absent: an optional operand that was not given.
struct Tensor {
  static constexpr int kMaxRank = 4;

  void* data = nullptr;
  Location where;
  DType dtype = DType::kFloat32;
  int rank = 0;
  std::array<int64_t, kMaxRank> shape = {};
  std::array<int64_t, kMaxRank> strides = {};  // In elements.

  // Returns a contiguous (row-major) tensor.
  static Tensor Contiguous(DType dtype, std::initializer_list<int64_t> shape, void* data = nullptr) {
    SHALE_CHECK(shape.size() >= 1 && shape.size() <= kMaxRank);
    Tensor t;
    t.data = data;
    t.dtype = dtype;
    t.rank = static_cast<int>(shape.size());
    int i = 0;
    for (int64_t n : shape) t.shape[i++] = n;
    int64_t stride = 1;
    for (i = t.rank - 1; i >= 0; --i) {
      t.strides[i] = stride;
      stride *= t.shape[i];
    }
    return t;
  }

  bool present() const { return rank > 0; }
  // A negative i counts from the last dimension: dim(-1) is its size.
  int64_t dim(int i) const { return shape[i < 0 ? rank + i : i]; }
  int64_t stride(int i) const { return strides[i < 0 ? rank + i : i]; }

  int64_t elements() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= shape[i];
    return rank == 0 ? 0 : n;
  }
  // Returns the number of elements from the first to the last, including gaps between rows.
  int64_t extent() const {
    if (elements() == 0) return 0;
    int64_t last = 0;
    for (int i = 0; i < rank; ++i) last += (shape[i] - 1) * strides[i];
    return last + 1;
  }
  int64_t extent_bytes() const { return extent() * SizeOf(dtype); }

  bool contiguous() const {
    int64_t stride = 1;
    for (int i = rank - 1; i >= 0; --i) {
      if (shape[i] != 1 && strides[i] != stride) return false;
      stride *= shape[i];
    }
    return true;
  }

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }

  // Returns the part [begin, begin + count) of dimension `axis`.
  Tensor Slice(int axis, int64_t begin, int64_t count) const {
    SHALE_CHECK(axis < rank && begin >= 0 && count >= 0 && begin + count <= shape[axis]);
    Tensor t = *this;
    t.shape[axis] = count;
    t.Advance(begin * strides[axis]);
    return t;
  }

  // Returns the same elements under another shape. REQUIRES: contiguous().
  Tensor Reshape(std::initializer_list<int64_t> new_shape) const {
    SHALE_CHECK(contiguous());
    Tensor t = Contiguous(dtype, new_shape, data);
    t.where = where;
    SHALE_CHECK(t.elements() == elements());
    return t;
  }

  // Splits the last dimension, which must be dense, into [count, width]: [T, H*D] -> [T, H, D].
  Tensor SplitLast(int64_t count, int64_t width) const {
    SHALE_CHECK(rank < kMaxRank && count * width == shape[rank - 1] && strides[rank - 1] == 1);
    Tensor t = *this;
    t.shape[rank - 1] = count;
    t.strides[rank - 1] = width;
    t.shape[rank] = width;
    t.strides[rank] = 1;
    t.rank = rank + 1;
    return t;
  }

  // Splits the first dimension into [count, shape[0] / count]: [B*S, N] -> [B, S, N].
  Tensor SplitFirst(int64_t count) const {
    SHALE_CHECK(rank < kMaxRank && count > 0 && shape[0] % count == 0);
    Tensor t = *this;
    for (int i = rank; i > 0; --i) {
      t.shape[i] = shape[i - 1];
      t.strides[i] = strides[i - 1];
    }
    t.shape[0] = count;
    t.shape[1] = shape[0] / count;
    t.strides[0] = t.shape[1] * strides[0];
    t.rank = rank + 1;
    return t;
  }

  // Moves the start of the view by `elements`: the offset in its buffer, and the address if the tensor is bound.
  void Advance(int64_t elements) {
    const int64_t bytes = elements * SizeOf(dtype);
    if (data != nullptr) data = static_cast<std::byte*>(data) + bytes;
    where.offset_bytes += bytes;
  }

  // Returns dtype and shape, such as "bf16[4, 128, 64]".
  std::string ToString() const {
    std::string text(shale::ToString(dtype).data(), shale::ToString(dtype).size());
    text += "[";
    for (int i = 0; i < rank; ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
    return text + "]";
  }
};

// Returns whether two symbolic tensors are the same elements, seen in the same way.
inline bool IsSameView(const Tensor& x, const Tensor& y) {
  return x.where == y.where && x.dtype == y.dtype && x.shape == y.shape && x.strides == y.strides;
}

}  // namespace shale
