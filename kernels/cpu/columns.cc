#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/columns.cc"
#include "kernels/cpu/columns.h"

#include <cstring>

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/ops/matmul.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

void AddPartialColumns(const float* partials, int64_t blocks, int64_t stride, int64_t columns, float* out,
                       bool accumulate) {
  ForVectors(columns, [&](int64_t i, auto lanes) HWY_ATTR {
    Vector total = lanes.Load(partials + i);
    for (int64_t b = 1; b < blocks; ++b) total = hn::Add(total, lanes.Load(partials + b * stride + i));
    lanes.Store(accumulate ? hn::Add(lanes.Load(out + i), total) : total, out + i);
  });
}

template <class T>
void SumRowsT(const Tensor& x_TN, int64_t begin, int64_t end, float* partial) {
  const Rows<const T> rows(x_TN);
  const int64_t n = x_TN.dim(1);
  std::memset(partial, 0, static_cast<size_t>(n) * sizeof(float));
  for (int64_t r = begin; r < end; ++r) {
    const T* row = rows[r];
    ForVectors(n, [&](int64_t i, auto lanes)
                      HWY_ATTR { lanes.Store(hn::Add(lanes.Load(partial + i), lanes.Load(row + i)), partial + i); });
  }
}

void SumRows(const Tensor& x_TN, int64_t begin, int64_t end, float* partial) {
  ForElementType(x_TN.dtype, [&](auto element) HWY_ATTR { SumRowsT<decltype(element)>(x_TN, begin, end, partial); });
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shale::cpu {

HWY_EXPORT(AddPartialColumns);
HWY_EXPORT(SumRows);

void AddPartials(const float* partials, int64_t blocks, int64_t stride, int64_t columns, float* out, bool accumulate,
                 Team& team) {
  ParallelFor(team, columns, /*block=*/512, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(AddPartialColumns)
    (partials + begin, blocks, stride, end - begin, out + begin, accumulate);
  });
}

int64_t ScratchBytesOf(const BiasBackward& op, const Context& context) {
  return ColumnScratchBytes(op.d_out_TN.dim(0), op.d_out_TN.dim(1));
}

absl::Status Run(const BiasBackward& op, Scratch scratch, const Context& context) {
  const int64_t n = op.d_out_TN.dim(1);
  const Partition rows = RowPartition(op.d_out_TN.dim(0));
  auto* partials = reinterpret_cast<float*>(scratch.data);
  ParallelFor(*context.team, rows.n, rows.block, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(SumRows)(op.d_out_TN, begin, end, partials + begin / rows.block * n);
  });
  AddPartials(partials, rows.blocks(), n, n, op.d_bias_N.as<float>(), op.accumulate, *context.team);
  return absl::OkStatus();
}

}  // namespace shale::cpu
#endif
