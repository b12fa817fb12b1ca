// Operands: the operands of attention's matmuls, in one of two forms: fp32, or pairs of bf16 (pair_tile-inl.h). Along
// the dimension that a matmul sums over, an operand is divided into places: a place is a float, or a pair of adjacent
// bf16.

#if defined(SHALE_KERNELS_CPU_ATTENTION_OPERANDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SHALE_KERNELS_CPU_ATTENTION_OPERANDS_INL_H_
#undef SHALE_KERNELS_CPU_ATTENTION_OPERANDS_INL_H_
#else
#define SHALE_KERNELS_CPU_ATTENTION_OPERANDS_INL_H_
#endif

#include "kernels/cpu/attention_heads.h"
#include "kernels/cpu/attention_sizes-inl.h"
#include "kernels/cpu/pair_tile-inl.h"
#include "kernels/cpu/row_prefetch.h"
#include "kernels/cpu/tile-inl.h"
#include "kernels/cpu_matmuls.h"
#include "kernels/integers.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

// How attention multiplies.
enum class AttentionForm {
  kFloats,  // Operands are fp32. Those that are bf16 or f16 are widened.
  kPairs,   // Operands are pairs of bf16 in vectors.
  kAmx      // Operands are pairs of bf16 in the tile registers of AMX.
};

// Returns the form that is used for activations of `dtype`. If matmuls widen bf16 because the processor's bf16
// instructions are slow, so does attention.
HWY_INLINE AttentionForm FormOf(DType dtype, CpuMatMuls cpu_matmuls) {
  if (dtype != DType::kBFloat16 || cpu_matmuls == CpuMatMuls::kPacked) return AttentionForm::kFloats;
  if (HasAmx()) return AttentionForm::kAmx;
  return HasBFloat16Instructions() ? AttentionForm::kPairs : AttentionForm::kFloats;
}

template <class T, bool kPairs>
struct Operands {
  static constexpr int64_t kUnit = kPairs ? 2 : 1;  // Elements per place.
  static constexpr int64_t Places(int64_t n) { return CeilDivide(n, kUnit); }

  // Like MultiplyTile, summing over k places.
  template <Operand kA, Result kC, int kColumns = kTile>
  static HWY_INLINE void Multiply(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t k,
                                  float factor, float* c, int64_t c_stride) {
    if constexpr (kPairs) {
      MultiplyPairTile<kA, kC, kColumns>(a, a_stride, b, b_stride, k, factor, c, c_stride);
    } else {
      MultiplyTile<kA, kC, kColumns>(a, a_stride, b, b_stride, k, factor, c, c_stride);
    }
  }

  // Multiplies the rows of a strip, from query i0 on, by the rows of `tiles` that their group sees. The sum over `k`
  // places of row r times row j goes to c[r][j - Origin(i0)]. Rows of both operands are `width` places wide. A tile
  // serves all groups while it is in the L1 cache.
  template <Result kC>
  static HWY_INLINE void MultiplyTiles(const AttentionSizes& sizes, int64_t i0, int64_t queries, const float* rows,
                                       const float* tiles, int64_t width, int64_t k, float factor, float* c,
                                       int64_t c_stride, RowPrefetch& ahead) {
    const int64_t origin = sizes.Origin(i0);
    for (int64_t tile = origin; tile < sizes.EndKey(i0 + queries - 1); tile += kTile) {
      for (int64_t r = 0; r < queries; r += kGroup) {
        const SliceRange seen(sizes, i0 + r);
        const int64_t begin = std::max(tile, seen.begin), end = std::min(tile + kTile, seen.end);
        if (begin >= end) continue;
        ahead.Step();
        const float *a = rows + r * width, *b = tiles + tile * width + begin - tile;
        float* to = c + r * c_stride + begin - origin;
        if (begin + kTile == end) {
          Multiply<Operand::kRows, kC>(a, width, b, kTile, k, factor, to, c_stride);
        } else {
          Multiply<Operand::kRows, kC, kSlice>(a, width, b, kTile, k, factor, to, c_stride);
        }
      }
    }
  }

  // Sets c[r], for the rows r of a strip from query i0 on, to the sum of a[r][j - Origin(i0)] b[j] over the keys j that
  // the group of row r sees. `a` has places along its rows. `b` was packed by PackPanels. Rows of c are `width` wide.
  static HWY_INLINE void SumOverKeys(const AttentionSizes& sizes, int64_t i0, int64_t queries, const float* a,
                                     int64_t a_stride, const float* b, int64_t width, float* c, RowPrefetch& ahead) {
    for (int64_t n = 0; n < width; n += kTile) {
      const float* panel = b + n * Places(sizes.padded_s());
      for (int64_t r = 0; r < queries; r += kGroup) {
        ahead.Step();
        const int64_t first = sizes.FirstKey(i0 + r) / kUnit, end = Places(sizes.EndKey(i0 + r + kGroup - 1));
        Multiply<Operand::kRows, Result::kWrite>(a + r * a_stride + first - sizes.Origin(i0) / kUnit, a_stride,
                                                 panel + first * kTile, kTile, end - first, 1.0f, c + r * width + n,
                                                 width);
      }
    }
  }

  // Packs rows [i0, i0 + count) of a head, `width` wide, with places along the row, for matmuls that sum over the
  // width.
  static void PackAlong(const HeadRows<T>& rows, int64_t i0, int64_t count, int64_t width, float* to,
                        int64_t to_stride) {
    if constexpr (kPairs) {
      PackPairs(rows[i0], rows.stride, count, width, to, to_stride);
    } else {
      PackRows(rows[i0], rows.stride, count, width, to, to_stride);
    }
  }

  // Packs rows [i0, i0 + count) of a head transposed, in tiles. i0 is a multiple of kTile. `room` is temporary memory
  // for kTile rows.
  static void PackTiles(const HeadRows<T>& rows, int64_t i0, int64_t count, int64_t width, float* to, int64_t to_width,
                        float* room) {
    if constexpr (kPairs) {
      PackPairsTransposed(rows[i0], rows.stride, count, width, to + i0 * to_width, to_width, room);
    } else {
      PackTransposed(rows[i0], rows.stride, count, width, to + i0 * to_width, to_width, room);
    }
  }

  // Packs rows [i0, i0 + count) of a head with places across rows, for matmuls that sum over the rows. `to` is the
  // place of row i0, which is even.
  static void PackAcross(const HeadRows<T>& rows, int64_t i0, int64_t count, int64_t width, float* to,
                         int64_t to_stride) {
    if constexpr (kPairs) {
      PackRowPairs(rows[i0], rows.stride, count, width, to, to_stride);
    } else {
      PackRows(rows[i0], rows.stride, count, width, to, to_stride);
    }
  }

  // Packs all keys or values [i0, i0 + count) of a head like PackAcross, but in panels of kTile columns, one after
  // another: [D / kTile][places of S][kTile]. A matmul reads one panel at a time, and so from adjacent cache lines.
  static void PackPanels(const AttentionSizes& sizes, HeadRows<T> rows, int64_t i0, int64_t count, float* to) {
    to += i0 / kUnit * kTile;
    if constexpr (!kPairs) {
      if (sizes.d % kTile == 0) {
        return PackWholePanels(rows[i0], rows.stride, count, sizes.d, to, sizes.padded_s() * kTile);
      }
    }
    for (int64_t n = 0; n < sizes.d; n += kTile, rows.data += kTile, to += Places(sizes.padded_s()) * kTile) {
      PackAcross(rows, i0, count, std::min(kTile, sizes.d - n), to, kTile);
    }
  }

  // Multiplies rows of a result by `factor`, rounds them to T, and writes them to `to`.
  static void Unpack(const float* from, int64_t from_stride, int64_t count, int64_t width, float factor, T* to,
                     int64_t to_stride) {
    if constexpr (kPairs) {
      UnpackRounded(from, from_stride, count, width, factor, to, to_stride);
    } else {
      UnpackRows(from, from_stride, count, width, factor, to, to_stride);
    }
  }
};

// Computes query heads [begin, end) of the op, numbered through all sequences, with a kernel of one dtype and form.
template <class Kernel, class OpType>
void RunHeadsBy(const OpType& op, int64_t begin, int64_t end, std::byte* scratch) {
  Carver carver(scratch);
  Kernel kernel(op, carver);
  for (int64_t item = begin; item < end; ++item) {
    const typename Kernel::Head head(op, item), next(op, std::min(item + 1, end - 1));
    kernel.Run(head, item + 1 < end ? &next : nullptr);
  }
}

// The same, with Kernel<T, kPairs> or Amx, whichever the op's dtype and `cpu_matmuls` ask for.
template <template <class, bool> class Kernel, class Amx, class OpType>
void RunHeads(const OpType& op, CpuMatMuls cpu_matmuls, int64_t begin, int64_t end, std::byte* scratch) {
  if (op.q_BSHD.dtype == DType::kFloat32) return RunHeadsBy<Kernel<float, false>>(op, begin, end, scratch);
  if (op.q_BSHD.dtype == DType::kFloat16) return RunHeadsBy<Kernel<Float16, false>>(op, begin, end, scratch);
  switch (FormOf(op.q_BSHD.dtype, cpu_matmuls)) {
    case AttentionForm::kAmx: return RunHeadsBy<Amx>(op, begin, end, scratch);
    case AttentionForm::kPairs: return RunHeadsBy<Kernel<BFloat16, true>>(op, begin, end, scratch);
    case AttentionForm::kFloats: return RunHeadsBy<Kernel<BFloat16, false>>(op, begin, end, scratch);
  }
}

// Returns the scratch of one thread that calls RunHeads.
template <class KernelScratch, class Amx, class OpType>
int64_t ThreadScratch(const OpType& op, CpuMatMuls cpu_matmuls) {
  Carver carver(nullptr);
  if (FormOf(op.q_BSHD.dtype, cpu_matmuls) == AttentionForm::kAmx) {
    Amx(op, carver);
  } else {
    KernelScratch(AttentionSizes(op), carver);
  }
  return carver.size_bytes();
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
