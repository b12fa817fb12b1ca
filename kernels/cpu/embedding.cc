// Embedding. Forward copies rows. Backward adds rows in the order of tokens. Each thread owns some of the columns, so
// that the order of addition does not depend on the number of threads.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/embedding.cc"
#include "kernels/ops/embedding.h"

#include <cstring>

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/check.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/row_prefetch.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/integers.h"
#include "kernels/reference/index_checks.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

template <class T>
void EmbeddingForwardT(const EmbeddingForward& op, int64_t begin, int64_t end) {
  const int32_t* tokens = op.tokens_BS.as<const int32_t>();
  const int64_t s = op.tokens_BS.dim(1), c = op.out_TC.dim(1);
  for (int64_t t = begin; t < end; ++t) {
    const T* row = op.weight_VC.as<const T>() + tokens[t] * c;
    // Rows lie anywhere, so hardware prefetchers cannot predict the next one.
    if (t + 1 < end) PrefetchElements(op.weight_VC.as<const T>() + tokens[t + 1] * c, c);
    T* out = op.out_TC.as<T>() + t * c;
    const Vector scale = Splat(op.scale);
    if (!op.positions_PC.present() && op.scale == 1) {
      std::memcpy(out, row, static_cast<size_t>(c) * sizeof(T));
      continue;
    }
    if (!op.positions_PC.present()) {
      Map(
          c, [scale](Vector a) HWY_ATTR { return hn::Mul(a, scale); }, out, row);
      continue;
    }
    const T* position = op.positions_PC.as<const T>() + PositionIn(op, t, s) * c;
    Map(
        c, [scale](Vector a, Vector b) HWY_ATTR { return hn::MulAdd(a, scale, b); }, out, row, position);
  }
}

template <class T>
void EmbeddingBackwardT(const EmbeddingBackward& op, int64_t begin, int64_t end) {
  const int32_t* tokens = op.tokens_BS.as<const int32_t>();
  const int64_t rows = op.d_out_TC.dim(0), s = op.tokens_BS.dim(1), c = op.d_out_TC.dim(1);
  float* d_weight = op.d_weight_VC.as<float>();
  float* d_positions = op.d_positions_PC.as<float>();
  for (int64_t t = 0; t < rows; ++t) {
    const T* d_out = op.d_out_TC.as<const T>() + t * c + begin;
    const auto add_to = [&](float* row, Vector scale) HWY_ATTR {
      ForVectors(end - begin, [&](int64_t i, auto lanes) HWY_ATTR {
        lanes.Store(hn::MulAdd(lanes.Load(d_out + i), scale, lanes.Load(row + i)), row + i);
      });
    };
    add_to(d_weight + tokens[t] * c + begin, Splat(op.scale));
    if (d_positions != nullptr) add_to(d_positions + t % s * c + begin, Splat(1.0f));
  }
}

// Computes rows [begin, end).
void EmbeddingForwardRows(const EmbeddingForward& op, int64_t begin, int64_t end) {
  ForActivations(op.out_TC.dtype, [&](auto element) HWY_ATTR { EmbeddingForwardT<decltype(element)>(op, begin, end); });
}
// Adds columns [begin, end) of d_out to the gradients.
void EmbeddingBackwardColumns(const EmbeddingBackward& op, int64_t begin, int64_t end) {
  ForElementType(op.d_out_TC.dtype,
                 [&](auto element) HWY_ATTR { EmbeddingBackwardT<decltype(element)>(op, begin, end); });
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shale::cpu {
namespace {

HWY_EXPORT(EmbeddingForwardRows);
HWY_EXPORT(EmbeddingBackwardColumns);

void Zero(const Tensor& t, Team& team) {
  if (!t.present()) return;
  float* x = t.as<float>();
  ParallelFor(team, t.elements(), /*block=*/1 << 16, [&](int64_t begin, int64_t end) {
    std::memset(x + begin, 0, static_cast<size_t>(end - begin) * sizeof(float));
  });
}

}  // namespace

absl::Status Run(const EmbeddingForward& op, Scratch scratch, const Context& context) {
  SHALE_RETURN_IF_ERROR(CheckTokens(op.kName, op.tokens_BS, op.weight_VC.dim(0)));
  SHALE_RETURN_IF_ERROR(CheckPositionIds(op.kName, op.position_ids_BS));
  if (op.positions_PC.present()) {
    SHALE_RETURN_IF_ERROR(CheckBegins(op.kName, op.begins_B, op.tokens_BS.dim(1), op.positions_PC.dim(0)));
  }
  ParallelFor(*context.team, op.out_TC.dim(0), RowsPerBlock(op.out_TC.dim(1)), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(EmbeddingForwardRows)(op, begin, end);
  });
  return absl::OkStatus();
}

absl::Status Run(const EmbeddingBackward& op, Scratch scratch, const Context& context) {
  SHALE_RETURN_IF_ERROR(CheckTokens(op.kName, op.tokens_BS, op.d_weight_VC.dim(0)));
  if (!op.accumulate) {
    Zero(op.d_weight_VC, *context.team);
    Zero(op.d_positions_PC, *context.team);
  }
  // One block per thread, a multiple of a cache line wide. How columns are divided changes no sum.
  constexpr int64_t kLine = 16;
  const int64_t c = op.d_out_TC.dim(1), lines = CeilDivide(c, kLine);
  const int64_t block = CeilDivide(lines, context.team->threads()) * kLine;
  ParallelFor(*context.team, c, block, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(EmbeddingBackwardColumns)(op, begin, end);
  });
  return absl::OkStatus();
}

}  // namespace shale::cpu
#endif
