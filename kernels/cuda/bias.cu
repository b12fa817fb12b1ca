// The gradient of a bias, which is a vector of column sums (see column_sums.h). The kernel makes one pass over d_out
// and is bound by memory.
#include "kernels/check.h"
#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/portable.h"
#include "kernels/ops/matmul.h"

namespace shale::cuda {
namespace {

template <class T, bool kAligned>
struct BiasSource {
  static constexpr int kSums = 1, kPack = kPackOf<T>, kBlocksPerSm = kColumnBlocksPerSm;
  using Loaded = Pack<T, kPack>;

  Rows<T> d_out;

  SHALE_DEVICE Loaded Load(int64_t row, int64_t c, int64_t C) const {
    return LoadPack<kAligned>(d_out.at, d_out.Begin(row), c, C);
  }
  SHALE_DEVICE void Add(const Loaded& loaded, float (&sums)[1][kPack]) const {
    SHALE_UNROLL
    for (int i = 0; i < kPack; ++i) sums[0][i] += Widen(loaded.at[i]);
  }
};

}  // namespace

absl::Status Run(const BiasBackward& op, Scratch scratch, StreamHandle stream) {
  const int64_t T = op.d_out_TN.dim(0), N = op.d_out_TN.dim(1);
  const ColumnShape shape = ColumnShape::Of(op.d_out_TN.dtype, T, N);
  const Partials partials(scratch, 1, shape.chunks.count, N);
  const bool aligned = N % (16 / SizeOf(op.d_out_TN.dtype)) == 0 && RowsAligned(op.d_out_TN);
  SHALE_RETURN_IF_ERROR(WithElement(op.d_out_TN.dtype, [&](auto element) {
    using E = decltype(element);
    const auto start = [&](auto source) {
      return Launch("BiasBackward", ColumnSumsKernel<decltype(source)>, LaunchOf(shape), stream, source, partials, T, N,
                    shape.chunks.per_chunk);
    };
    const Rows<E> d_out(op.d_out_TN, "d_out");
    return aligned ? start(BiasSource<E, true>{d_out}) : start(BiasSource<E, false>{d_out});
  }));
  return SumChunks("BiasBackward", partials, op.d_bias_N, Tensor(), op.accumulate, stream);
}

}  // namespace shale::cuda
