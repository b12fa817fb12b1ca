// Small matmuls of bf16 operands that are not widened first, on processors with AVX512-BF16. vdpbf16ps multiplies 16
// pairs of bf16 and adds both products of a pair to an fp32 sum, which is twice the work of an fp32 multiply-add. A
// product of two bf16 is exact in fp32, so these sums differ from those of widened operands only in the order of
// addition (and subnormals count as 0).
//
// A pair takes the place of a float: rows, tiles and strides are those of tile-inl.h with D / 2 for D.

#if defined(SHALE_KERNELS_CPU_PAIR_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SHALE_KERNELS_CPU_PAIR_TILE_INL_H_
#undef SHALE_KERNELS_CPU_PAIR_TILE_INL_H_
#else
#define SHALE_KERNELS_CPU_PAIR_TILE_INL_H_
#endif

#include "kernels/cpu/tile-inl.h"
#include "kernels/integers.h"

#if HWY_TARGET == HWY_AVX3

// Highway 1.0.3 does not have this instruction, so the code uses the intrinsic and a target attribute. Only the code
// between PUSH and POP may use it, and only if HasBFloat16Instructions().
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512bf16")
namespace shale::cpu::HWY_NAMESPACE {

HWY_INLINE Vector AddPairProducts(Vector sum, Vector a, Vector b) {
  return Vector{_mm512_dpbf16_ps(sum.raw, reinterpret_cast<__m512bh>(a.raw), reinterpret_cast<__m512bh>(b.raw))};
}

template <int kVectors>
HWY_INLINE void AddPairProducts(Accumulators<0, kVectors>&, const float*, int64_t, Vector, Vector) {}
template <int kRows, int kVectors>
HWY_INLINE void AddPairProducts(Accumulators<kRows, kVectors>& sums, const float* a, int64_t stride, Vector b_left,
                                Vector b_right) {
  const Vector pair = Splat(*a);
  sums.left = AddPairProducts(sums.left, pair, b_left);
  if constexpr (kVectors == 2) sums.right = AddPairProducts(sums.right, pair, b_right);
  AddPairProducts(sums.below, a + stride, stride, b_left, b_right);
}

// Like MultiplyTile, for pairs: sums the products of both elements of the pairs a(r, i) and b[i][n] over k pairs.
template <Operand kA, Result kC, int kColumns = kTile>
void MultiplyPairTile(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t k, float factor,
                      float* c, int64_t c_stride) {
  static_assert(sizeof(Vector) == kSlice * sizeof(float));
  const int64_t a_row = kA == Operand::kRows ? a_stride : 1, a_next = kA == Operand::kRows ? 1 : a_stride;
  Accumulators<kGroup, kColumns / kSlice> sums;
  if constexpr (kC == Result::kAdd) {
    sums.Load(c, c_stride);
  } else {
    sums.Clear();
  }
  for (int64_t i = 0; i < k; ++i, a += a_next, b += b_stride) {
    AddPairProducts(sums, a, a_row, Load(b), Load(b + kColumns - kSlice));
  }
  if constexpr (kC == Result::kScale) sums.Scale(Splat(factor));
  sums.Store(c, c_stride);
}

// Like UnpackRows, to bf16. Reads rows of `from` up to the end of the last slice.
inline void UnpackRounded(const float* from, int64_t from_stride, int64_t rows, int64_t width, float factor,
                          BFloat16* to, int64_t to_stride) {
  const int64_t whole = RoundDown(width, kSlice);
  for (int64_t r = 0; r < rows; ++r, from += from_stride, to += to_stride) {
    for (int64_t i = 0; i < whole; i += kSlice) StoreRounded(hn::Mul(Load(from + i), Splat(factor)), to + i);
    if (whole < width) {
      BFloat16 last[kSlice];
      StoreRounded(hn::Mul(Load(from + whole), Splat(factor)), last);
      std::memcpy(static_cast<void*>(to + whole), last, static_cast<size_t>(width - whole) * sizeof(BFloat16));
    }
  }
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_POP_ATTRIBUTES

#endif

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

#if HWY_TARGET != HWY_AVX3
template <Operand kA, Result kC, int kColumns = kTile>
void MultiplyPairTile(const float*, int64_t, const float*, int64_t, int64_t, float, float*, int64_t) {}
inline void UnpackRounded(const float*, int64_t, int64_t, int64_t, float, BFloat16*, int64_t) {}
#endif

// Copies `rows` rows of bf16, and fills each with zeros up to pair `to_stride`.
HWY_INLINE void PackPairs(const BFloat16* from, int64_t from_stride, int64_t rows, int64_t width, float* to,
                          int64_t to_stride) {
  const uint16_t* source = reinterpret_cast<const uint16_t*>(from);
  uint16_t* halves = reinterpret_cast<uint16_t*>(to);
  for (int64_t r = 0; r < rows; ++r, source += from_stride, halves += 2 * to_stride) {
    ForVectors(width,
               [&](int64_t i, auto lanes) HWY_ATTR { lanes.StoreHalves(lanes.LoadHalves(source + i), halves + i); });
    const int64_t rest = 2 * to_stride - width;
    if (rest > 0) std::memset(halves + width, 0, static_cast<size_t>(rest) * sizeof(uint16_t));
  }
}

// Packs tiles of kTile rows, each transposed: pair i of row r goes to to[r / kTile][i][r % kTile]. Rows up to the
// end of the last tile become zeros. `rows_of_tile` is temporary memory for kTile x to_width pairs.
HWY_INLINE void PackPairsTransposed(const BFloat16* from, int64_t from_stride, int64_t rows, int64_t width, float* to,
                                    int64_t to_width, float* rows_of_tile) {
  for (int64_t begin = 0; begin < rows; begin += kTile) {
    const int64_t count = std::min(kTile, rows - begin);
    PackPairs(from + begin * from_stride, from_stride, count, width, rows_of_tile, to_width);
    if (count < kTile) std::fill(rows_of_tile + count * to_width, rows_of_tile + kTile * to_width, 0.0f);
    Transpose(rows_of_tile, to_width, kTile, to_width, to + begin * to_width, kTile);
  }
}

// Sets to[r / 2][i] to the pair of from[r][i] and from[r + 1][i]. A row past the last, and columns up to `to_stride`,
// count as zeros.
HWY_INLINE void PackRowPairs(const BFloat16* from, int64_t from_stride, int64_t rows, int64_t width, float* to,
                             int64_t to_stride) {
  for (int64_t r = 0; r < rows; r += 2, from += 2 * from_stride, to += to_stride) {
    ForVectors(width, [&](int64_t i, auto lanes) HWY_ATTR {
      const Bits d;
      const auto even = hn::ShiftRight<16>(hn::BitCast(d, lanes.Load(from + i)));
      const auto odd = r + 1 < rows ? hn::BitCast(d, lanes.Load(from + from_stride + i)) : hn::Zero(d);
      lanes.Store(hn::BitCast(Floats(), hn::Or(even, odd)), to + i);
    });
    if (width < to_stride) std::fill(to + width, to + to_stride, 0.0f);
  }
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
