// Turns the tensors of an op into kernel arguments.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/portable.h"
#include "kernels/tensor.h"

namespace shale::cuda {

// Returns all elements of `t`, gaps between rows included.
template <class T>
Global<T> Whole(const Tensor& t, const char* name) {
  return Global<T>(t.as<T>(), t.extent(), name);
}

// Returns a / b. A 32-bit division costs a fraction of a 64-bit one. REQUIRES: a >= 0, b > 0
SHALE_DEVICE int64_t Quotient(int64_t a, int64_t b) {
  if (((a | b) >> 32) == 0) return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
  return a / b;
}

// Returns the position in its document of token t, which is at position s of its sequence ([Note: position ids] in
// kernels/ops/attention.h). A position id that is negative or past s, which is not valid, is taken for s.
SHALE_DEVICE int64_t PositionOf(const Global<int32_t>& position_ids, int64_t t, int64_t s) {
  if (!position_ids.present()) return s;
  const int32_t id = position_ids.Load(t);
  return id < 0 || id > s ? s : id;
}

// Returns the position of the first token of sequence b ([Note: begins] there). A negative one, which is not valid, is
// taken for 0.
SHALE_DEVICE int64_t BeginOf(const Global<int32_t>& begins, int64_t b) {
  if (!begins.present()) return 0;
  const int32_t begin = begins.Load(b);
  return begin < 0 ? 0 : begin;
}

// The rows of a [T, C] or [T, H, D] operand whose outer dimensions may be strided. Row t * H + h is [t, h]. An absent
// operand has no rows.
template <class T>
struct Rows {
  Global<T> at;
  int64_t inner, outer_stride, inner_stride;

  Rows(const Tensor& t, const char* name)
      : at(Whole<T>(t, name)),
        inner(t.rank == 3 ? t.shape[1] : 1),
        outer_stride(t.strides[0]),
        inner_stride(t.rank == 3 ? t.strides[1] : 0) {
    // Rows that are equally far apart need no division.
    if (t.rank == 3 && (t.shape[0] == 1 || outer_stride == inner * inner_stride)) {
      inner = 1;
      outer_stride = inner_stride;
    }
  }

  SHALE_DEVICE int64_t Begin(int64_t row) const {
    if (inner == 1) return row * outer_stride;
    const int64_t outer = Quotient(row, inner);
    return outer * outer_stride + (row - outer * inner) * inner_stride;
  }
};

// Returns whether every row of `t` begins at a multiple of 16 bytes. True for an absent operand.
inline bool RowsAligned(const Tensor& t) {
  if (!t.present()) return true;
  const int64_t pack = 16 / SizeOf(t.dtype);
  bool aligned = reinterpret_cast<uintptr_t>(t.data) % 16 == 0;
  // The stride of a dimension of one element is never used.
  for (int i = 0; i < t.rank - 1; ++i) aligned = aligned && (t.shape[i] == 1 || t.strides[i] % pack == 0);
  return aligned;
}

// Loads the pack that begins at column `c` of the row at offset `row`, with zeros from column `end` on. kAligned
// promises that rows begin and end at multiples of 16 bytes.
template <bool kAligned, class T>
SHALE_DEVICE Pack<T, kPackOf<T>> LoadPack(const Global<T>& from, int64_t row, int64_t c, int64_t end) {
  constexpr int kPack = kPackOf<T>;
  Pack<T, kPack> pack = {};
  if constexpr (kAligned) {
    if (c < end) pack = from.template Load<kPack>(row + c);
  } else {
    SHALE_UNROLL
    for (int i = 0; i < kPack; ++i) {
      if (c + i < end) pack.at[i] = from.Load(row + c + i);
    }
  }
  return pack;
}

// Stores a pack at the same place, except for its elements from column `end` on.
template <bool kAligned, class T>
SHALE_DEVICE void StorePack(const Global<T>& to, int64_t row, int64_t c, int64_t end, const Pack<T, kPackOf<T>>& pack) {
  if constexpr (kAligned) {
    if (c < end) to.Store(row + c, pack);
  } else {
    SHALE_UNROLL
    for (int i = 0; i < kPackOf<T>; ++i) {
      if (c + i < end) to.Store(row + c + i, pack.at[i]);
    }
  }
}

template <class T>
inline constexpr DType kDTypeOf = std::is_same_v<T, float>     ? DType::kFloat32
                                  : std::is_same_v<T, Float16> ? DType::kFloat16
                                                               : DType::kBFloat16;

// Calls run(T()) with the element type of a tensor of bf16 or f16.
template <class Run>
absl::Status WithHalf(DType act, const Run& run) {
  return act == DType::kFloat16 ? run(Float16()) : run(BFloat16());
}

// Calls run(T()) with the element type of an act tensor: float, BFloat16 or Float16.
template <class Run>
absl::Status WithElement(DType act, const Run& run) {
  if (act == DType::kFloat32) return run(float());
  return WithHalf(act, run);
}

}  // namespace shale::cuda
