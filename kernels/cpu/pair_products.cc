// One task of a product (pair_tiling.h): for each block of k, its part of b is packed into panels of 32 columns; 8 rows
// of a at a time meet all panels, and each of their products with a panel is a sum in registers.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/pair_products.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include <cpuid.h>
#include <omp.h>

#include <algorithm>
#include <cstring>

#include "hwy/cache_control.h"
#include "kernels/cpu/pair_packing-inl.h"
#include "kernels/cpu/pair_panel-inl.h"
#include "kernels/cpu/pair_products.h"
#include "kernels/cpu/pair_tiling.h"
#include "kernels/cpu/simd-inl.h"

#if HWY_TARGET == HWY_AVX3

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512bf16")
namespace shale::cpu::HWY_NAMESPACE {

HWY_INLINE void AddPairs(Accumulators<0>&, const BFloat16*, int64_t, Vector, Vector) {}
// Adds the products of one pair of each row of a, `a_row` elements apart, and those of a panel.
template <int kRows>
HWY_INLINE void AddPairs(Accumulators<kRows>& sums, const BFloat16* a, int64_t a_row, Vector left, Vector right) {
  float both;
  std::memcpy(&both, static_cast<const void*>(a), sizeof(both));
  const Vector pair = Splat(both);
  sums.left = AddPairProducts(sums.left, pair, left);
  sums.right = AddPairProducts(sums.right, pair, right);
  AddPairs(sums.below, a + a_row, a_row, left, right);
}

// Where sums go: `to` = sums + before + bias. Null: nothing to add.
template <class T>
struct PairResult {
  T* to;
  int64_t to_stride;
  const float* before;
  int64_t before_stride;
  const BFloat16* bias;
};

template <class T, class Lanes>
HWY_INLINE Vector Finished(Vector v, const PairResult<T>& result, int64_t r, int64_t c, Lanes lanes) {
  if (result.before != nullptr) v = hn::Add(lanes.Load(result.before + r * result.before_stride + c), v);
  if (result.bias != nullptr) v = hn::Add(v, lanes.Load(result.bias + c));
  return v;
}

// A row of a panel. Rounds as Store does, but for subnormals, which become 0 as they do in products.
HWY_INLINE void StoreRow(Vector left, Vector right, BFloat16* to) {
  const __m512bh both = _mm512_cvtne2ps_pbh(right.raw, left.raw);
  std::memcpy(static_cast<void*>(to), &both, sizeof(both));
}
HWY_INLINE void StoreRow(Vector left, Vector right, float* to) {
  Store(left, to);
  Store(right, to + kPanel / 2);
}

template <class T>
HWY_INLINE void PutRows(const Accumulators<0>&, const PairResult<T>&, int64_t) {}
template <int kRows, class T>
HWY_INLINE void PutRows(const Accumulators<kRows>& sums, const PairResult<T>& result, int64_t r) {
  StoreRow(Finished(sums.left, result, r, 0, Full()), Finished(sums.right, result, r, kPanel / 2, Full()),
           result.to + r * result.to_stride);
  PutRows(sums.below, result, r + 1);
}

// 8 rows of a, `a_row` elements apart, whose pairs are `a_next` apart, times a panel of b; `rows` x `columns` of it are
// wanted.
template <class T>
void MultiplyTile(const BFloat16* a, int64_t a_row, int64_t a_next, const BFloat16* b, int64_t pairs,
                  const PairResult<T>& result, int64_t rows, int64_t columns) {
  if (result.before != nullptr) {
    for (int64_t r = 0; r < rows; ++r) {
      const float* row = result.before + r * result.before_stride;
      hwy::Prefetch(row);
      hwy::Prefetch(row + std::min<int64_t>(columns - 1, kPanel / 2));
    }
  }
  Accumulators<kTileRows> sums;
  sums.Clear();
  const hn::Repartition<uint16_t, Floats> halves;
  const auto* panel = reinterpret_cast<const uint16_t*>(b);
  for (int64_t i = 0; i < pairs; ++i, a += a_next, panel += 2 * kPanel) {
    AddPairs(sums, a, a_row, hn::BitCast(Floats(), hn::LoadU(halves, panel)),
             hn::BitCast(Floats(), hn::LoadU(halves, panel + kPanel)));
  }
  if (rows == kTileRows && columns == kPanel) return PutRows(sums, result, 0);
  float tile[kTileRows * kPanel];
  sums.Store(tile, kPanel);
  for (int64_t r = 0; r < rows; ++r) {
    ForVectors(columns, [&](int64_t c, auto lanes) HWY_ATTR {
      const Vector v = lanes.Load(tile + r * kPanel + c);
      lanes.Store(Finished(v, result, r, c, lanes), result.to + r * result.to_stride + c);
    });
  }
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_POP_ATTRIBUTES
#endif

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3
bool HasPairs() { return HasPairProducts(); }

// A task's part of a product, for a block of k: `a`, `b` and `result` begin where the task and the block do.
template <class T>
void MultiplyBlock(const ProductShape& shape, const PairTiling& tiling, const PairTask& task, const BFloat16* a,
                   const BFloat16* b, int64_t k, const PairResult<T>& result, BFloat16* b_panels, BFloat16* a_panels) {
  const int64_t pairs = (k + 1) / 2, rows = task.m_end - task.m_begin, columns = task.n_end - task.n_begin;
  PackPairPanels<kPanel>(b, shape.b_stride_k, shape.b_stride_n, k, columns, b_panels);
  const int64_t step = tiling.packed_rows;
  for (int64_t first = 0; first < rows; first += step) {
    const int64_t count = std::min(step, rows - first);
    // The last few rows are packed in any case, for their tile has no 8.
    const int64_t direct = tiling.pack_rows ? 0 : RoundDown(count, kTileRows);
    if (direct < count) {
      PackPairPanels<kRowPanel>(a + first * shape.a_stride_m, shape.a_stride_k, shape.a_stride_m, k, count, a_panels);
    }
    for (int64_t r = 0; r < count; r += kTileRows) {
      const bool packed = r >= direct;
      const BFloat16* tile = packed ? a_panels + (r / kRowPanel * kRowPanel * pairs + r % kRowPanel) * 2
                                    : a + (first + r) * shape.a_stride_m;
      PairResult<T> to = result;
      to.to += (first + r) * result.to_stride;
      if (to.before != nullptr) to.before += (first + r) * result.before_stride;
      for (int64_t n = 0; n < columns; n += kPanel) {
        MultiplyTile(tile, packed ? 2 : shape.a_stride_m, packed ? 2 * kRowPanel : 2, b_panels + n * pairs * 2, pairs,
                     to, std::min<int64_t>(kTileRows, count - r), std::min(kPanel, columns - n));
        to.to += kPanel;
        if (to.before != nullptr) to.before += kPanel;
        if (to.bias != nullptr) to.bias += kPanel;
      }
    }
  }
}

void RunPairTask(const ProductShape& shape, const PairTiling& tiling, const PairTask& task,
                 const ProductOperands& operands, std::byte* scratch) {
  const int64_t columns = task.n_end - task.n_begin;
  auto* b_panels = reinterpret_cast<BFloat16*>(scratch);
  auto* a_panels = reinterpret_cast<BFloat16*>(scratch + tiling.b_bytes());
  auto* sums = reinterpret_cast<float*>(scratch + tiling.b_bytes() + tiling.a_bytes());
  const auto* bias = shape.bias ? static_cast<const BFloat16*>(operands.bias) + task.n_begin : nullptr;
  const int64_t c_offset = task.m_begin * shape.c_stride_m + task.n_begin;
  for (int64_t k = 0; k < tiling.k; k += tiling.k_block) {
    const int64_t count = std::min(tiling.k_block, tiling.k - k);
    const bool first = k == 0, last = k + count == tiling.k;
    const auto* a = static_cast<const BFloat16*>(operands.a) + task.m_begin * shape.a_stride_m + k * shape.a_stride_k;
    const auto* b = static_cast<const BFloat16*>(operands.b) + task.n_begin * shape.b_stride_n + k * shape.b_stride_k;
    const auto multiply = [&](const auto& result) {
      MultiplyBlock(shape, tiling, task, a, b, count, result, b_panels, a_panels);
    };
    if (shape.c_dtype == DType::kFloat32) {
      float* c = static_cast<float*>(operands.c) + c_offset;
      multiply(PairResult<float>{c, shape.c_stride_m, !first || shape.accumulate ? c : nullptr, shape.c_stride_m,
                                 last ? bias : nullptr});
    } else if (last) {
      multiply(PairResult<BFloat16>{static_cast<BFloat16*>(operands.c) + c_offset, shape.c_stride_m,
                                    first ? nullptr : sums, columns, bias});
    } else {
      multiply(PairResult<float>{sums, columns, first ? nullptr : sums, columns, nullptr});
    }
  }
}

#else
bool HasPairs() { return false; }
void RunPairTask(const ProductShape&, const PairTiling&, const PairTask&, const ProductOperands&, std::byte*) {}
#endif

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shale::cpu {
namespace {

HWY_EXPORT(HasPairs);
HWY_EXPORT(RunPairTask);

// oneDNN uses tile units, which multiply many times as fast.
bool HasTileUnit() {
  static const bool has = [] {
    unsigned a, b, c, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & (1u << 22)) != 0;  // AMX-BF16
  }();
  return has;
}

}  // namespace

bool MultipliesPairs(const ProductShape& shape) {
  return shape.dtype == DType::kBFloat16 && shape.m >= 16 && !HasTileUnit() && HWY_DYNAMIC_DISPATCH(HasPairs)();
}

int64_t PairScratchBytes(const ProductShape& shape, int threads) {
  const PairTiling tiling(shape, threads);
  return tiling.thread_bytes() * std::min<int64_t>(threads, tiling.tasks());
}

void MultiplyPairs(const ProductShape& shape, const ProductOperands& operands, int threads) {
  const PairTiling tiling(shape, threads);
  const int64_t tasks = tiling.tasks();
  const auto run = [&](int64_t i, int thread) {
    HWY_DYNAMIC_DISPATCH(RunPairTask)
    (shape, tiling, tiling.TaskOf(i), operands, operands.scratch.data + thread * tiling.thread_bytes());
  };
  const int team = static_cast<int>(std::min<int64_t>(threads, tasks));
  if (team == 1) {
    for (int64_t i = 0; i < tasks; ++i) run(i, 0);
    return;
  }
#pragma omp parallel for num_threads(team) schedule(dynamic)
  for (int64_t i = 0; i < tasks; ++i) run(i, omp_get_thread_num());
}

}  // namespace shale::cpu
#endif
