// Group normalization, channels last.
//
// The elements of a group are strided, so statistics come from column sums (column_sums.h). The first kernel sums each
// channel over the positions of a sample. In the second, a block per group adds the sums of its channels. The last
// kernel, with the same blocks as the first, computes the output. Bound by memory: x (backward: d_y and x) is read
// twice. Sums of x and x^2 are fp64, so that the variance can be computed as mean(x^2) - mean(x)^2.
#include "kernels/check.h"
#include "kernels/cuda/block_sum.h"
#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/portable.h"

namespace shale::cuda {
namespace {

constexpr int kGroupThreads = 128;

struct Sizes {
  int64_t L, C, G;
  SHALE_DEVICE int64_t width() const { return C / G; }
};

// The statistics that normalize the channels of one thread.
template <int kPack>
struct Channels {
  float mean[kPack], rstd[kPack];

  SHALE_DEVICE Channels(const Global<float>& mean_BG, const Global<float>& rstd_BG, const Sizes& sizes, int64_t b,
                        int64_t c) {
    SHALE_UNROLL
    for (int i = 0; i < kPack; ++i) {
      const int64_t at = b * sizes.G + Quotient(c + i, sizes.width());
      mean[i] = c + i < sizes.C ? mean_BG.Load(at) : 0.0f;
      rstd[i] = c + i < sizes.C ? rstd_BG.Load(at) : 0.0f;
    }
  }
  SHALE_DEVICE float Normal(int i, float x) const { return (x - mean[i]) * rstd[i]; }
};

// Calls body(row of partials, channel) for all partial sums of the calling block's group, divided among its threads.
template <class Body>
SHALE_DEVICE void ForEachPartial(const Sizes& sizes, int64_t chunks, const Body& body) {
  const int64_t b = Quotient(blockIdx.x, sizes.G), g = blockIdx.x - b * sizes.G, width = sizes.width();
  for (int64_t i = threadIdx.x; i < chunks * width; i += kGroupThreads) {
    const int64_t chunk = Quotient(i, width);
    body(b * chunks + chunk, g * width + i - chunk * width);
  }
}

template <class T, bool kAligned>
struct SquaresSource {
  using Sum = double;
  static constexpr int kSums = 2, kPack = kPackOf<T>, kBlocksPerSm = 2;
  struct Columns {};
  using Loaded = Pack<T, kPack>;

  Global<T> x;

  SHALE_DEVICE Columns Prepare(int64_t b, int64_t c, int64_t C) const { return {}; }
  SHALE_DEVICE Loaded Load(int64_t row, int64_t c, int64_t C) const { return LoadPack<kAligned>(x, row * C, c, C); }
  SHALE_DEVICE void Add(const Columns&, const Loaded& loaded, double (&sums)[kSums][kPack]) const {
    SHALE_UNROLL
    for (int i = 0; i < kPack; ++i) {
      const double value = Widen(loaded.at[i]);
      sums[0][i] += value;
      sums[1][i] += value * value;
    }
  }
};

SHALE_KERNEL GroupStatisticsKernel(Partials<double> partials, int64_t chunks, Global<float> mean_BG,
                                   Global<float> rstd_BG, Sizes sizes, float epsilon) {
  double sum = 0, squares = 0;
  ForEachPartial(sizes, chunks, [&](int64_t row, int64_t c) {
    sum += partials.at.Load(partials.Begin(0, row) + c);
    squares += partials.at.Load(partials.Begin(1, row) + c);
  });
  const double size = static_cast<double>(sizes.L * sizes.width());
  const double mean = SumOverBlock<kGroupThreads, 0>(sum) / size;
  const double variance = SumOverBlock<kGroupThreads, 1>(squares) / size - mean * mean;
  if (threadIdx.x != 0) return;
  mean_BG.Store(blockIdx.x, static_cast<float>(mean));
  rstd_BG.Store(blockIdx.x, static_cast<float>(1 / sqrt((variance > 0 ? variance : 0 * variance) + epsilon)));
}

template <class T, bool kAligned>
SHALE_KERNEL SHALE_BOUNDS(kColumnThreads, 2)
    GroupNormForwardKernel(Global<T> x, Global<T> weight, Global<T> bias, Global<float> mean_BG, Global<float> rstd_BG,
                           Global<T> y, Sizes sizes, Chunks chunks) {
  constexpr int kPack = kPackOf<T>;
  const int64_t C = sizes.C;
  const ColumnWork work(kPack, sizes.L, chunks);
  const Channels<kPack> channels(mean_BG, rstd_BG, sizes, work.group, work.c);
  const Pack<T, kPack> w = LoadPack<kAligned>(weight, 0, work.c, C), b = LoadPack<kAligned>(bias, 0, work.c, C);
  for (int64_t row = work.begin; row < work.end; row += kRowsInFlight * kRowSlots) {
    Pack<T, kPack> loaded[kRowsInFlight];
    SHALE_UNROLL
    for (int k = 0; k < kRowsInFlight; ++k) {
      const int64_t at = row + k * kRowSlots;
      loaded[k] = LoadPack<kAligned>(x, at * C, work.c, at < work.end ? C : 0);
    }
    SHALE_UNROLL
    for (int k = 0; k < kRowsInFlight; ++k) {
      const int64_t at = row + k * kRowSlots;
      SHALE_UNROLL
      for (int i = 0; i < kPack; ++i) {
        const float normal = channels.Normal(i, Widen(loaded[k].at[i]));
        loaded[k].at[i] = Narrow<T>(fmaf(normal, Widen(w.at[i]), Widen(b.at[i])));
      }
      StorePack<kAligned>(y, at * C, work.c, at < work.end ? C : 0, loaded[k]);
    }
  }
}

template <class T, bool kAligned>
struct GroupGradientSource {
  using Sum = float;
  static constexpr int kSums = 2, kPack = kPackOf<T>, kBlocksPerSm = 2;
  using Columns = Channels<kPack>;
  struct Loaded {
    Pack<T, kPack> d_y, x;
  };

  Global<T> d_y, x;
  Global<float> mean_BG, rstd_BG;
  Sizes sizes;

  SHALE_DEVICE Columns Prepare(int64_t b, int64_t c, int64_t C) const { return {mean_BG, rstd_BG, sizes, b, c}; }
  SHALE_DEVICE Loaded Load(int64_t row, int64_t c, int64_t C) const {
    return {LoadPack<kAligned>(d_y, row * C, c, C), LoadPack<kAligned>(x, row * C, c, C)};
  }
  SHALE_DEVICE void Add(const Columns& channels, const Loaded& loaded, float (&sums)[kSums][kPack]) const {
    SHALE_UNROLL
    for (int i = 0; i < kPack; ++i) {
      const float d = Widen(loaded.d_y.at[i]);
      sums[0][i] = fmaf(d, channels.Normal(i, Widen(loaded.x.at[i])), sums[0][i]);
      sums[1][i] += d;
    }
  }
};

// Stores mean(g n) of all groups, then mean(g) of all groups, where g = d_y weight and n is the normalized x.
template <class T>
SHALE_KERNEL GroupMeansKernel(Partials<float> partials, int64_t chunks, Global<T> weight, Global<float> means,
                              Sizes sizes) {
  double sums[2] = {0, 0};
  ForEachPartial(sizes, chunks, [&](int64_t row, int64_t c) {
    const double w = Widen(weight.Load(c));
    for (int k = 0; k < 2; ++k) sums[k] += w * static_cast<double>(partials.at.Load(partials.Begin(k, row) + c));
  });
  const double size = static_cast<double>(sizes.L * sizes.width());
  const double mean_gn = SumOverBlock<kGroupThreads, 0>(sums[0]) / size;
  const double mean_g = SumOverBlock<kGroupThreads, 1>(sums[1]) / size;
  if (threadIdx.x != 0) return;
  means.Store(blockIdx.x, static_cast<float>(mean_gn));
  means.Store(static_cast<int64_t>(gridDim.x) + blockIdx.x, static_cast<float>(mean_g));
}

template <class T, bool kAligned>
SHALE_KERNEL SHALE_BOUNDS(kColumnThreads, 2)
    GroupNormBackwardKernel(GroupGradientSource<T, kAligned> op, Global<T> weight, Global<float> means, Global<T> d_x,
                            int64_t groups, Chunks chunks) {
  constexpr int kPack = kPackOf<T>;
  const int64_t C = op.sizes.C;
  const ColumnWork work(kPack, op.sizes.L, chunks);
  const Channels<kPack> channels = op.Prepare(work.group, work.c, C);
  const Pack<T, kPack> w = LoadPack<kAligned>(weight, 0, work.c, C);
  float mean_gn[kPack], mean_g[kPack];
  SHALE_UNROLL
  for (int i = 0; i < kPack; ++i) {
    const int64_t at = work.group * op.sizes.G + Quotient(work.c + i, op.sizes.width());
    mean_gn[i] = work.c + i < C ? means.Load(at) : 0.0f;
    mean_g[i] = work.c + i < C ? means.Load(groups + at) : 0.0f;
  }
  for (int64_t row = work.begin; row < work.end; row += 2 * kRowSlots) {
    typename GroupGradientSource<T, kAligned>::Loaded loaded[2];
    SHALE_UNROLL
    for (int k = 0; k < 2; ++k) {
      if (row + k * kRowSlots < work.end) loaded[k] = op.Load(row + k * kRowSlots, work.c, C);
    }
    SHALE_UNROLL
    for (int k = 0; k < 2; ++k) {
      const int64_t at = row + k * kRowSlots;
      if (at >= work.end) continue;
      SHALE_UNROLL
      for (int i = 0; i < kPack; ++i) {
        const float g = Widen(loaded[k].d_y.at[i]) * Widen(w.at[i]), n = channels.Normal(i, Widen(loaded[k].x.at[i]));
        loaded[k].x.at[i] = Narrow<T>(channels.rstd[i] * fmaf(-n, mean_gn[i], g - mean_g[i]));
      }
      StorePack<kAligned>(d_x, at * C, work.c, C, loaded[k].x);
    }
  }
}

Sizes SizesOf(const Tensor& x_BLC, const Tensor& mean_BG) { return {x_BLC.dim(1), x_BLC.dim(2), mean_BG.dim(1)}; }

ColumnShape ShapeOf(const Tensor& x_BLC) {
  return ColumnShape::Of(x_BLC.dtype, x_BLC.dim(0), x_BLC.dim(1), x_BLC.dim(2));
}

LaunchShape GroupsShape(const Tensor& mean_BG) {
  return {.grid = dim3(static_cast<unsigned>(mean_BG.elements())), .block = dim3(kGroupThreads)};
}

template <class T, bool kAligned>
absl::Status Forward(const GroupNormForward& op, Scratch scratch, StreamHandle stream) {
  using Source = SquaresSource<T, kAligned>;
  const Sizes sizes = SizesOf(op.x_BLC, op.mean_BG);
  const ColumnShape shape = ShapeOf(op.x_BLC);
  const Partials<double> partials(scratch, 2, shape.partial_rows(), sizes.C);
  const Global<T> x = Whole<T>(op.x_BLC, "x");
  const Global<float> mean = Whole<float>(op.mean_BG, "mean"), rstd = Whole<float>(op.rstd_BG, "rstd");
  SHALE_RETURN_IF_ERROR(Launch("GroupNormForward", ColumnSumsKernel<Source>, shape.launch_shape(), stream, Source{x},
                               partials, sizes.L, sizes.C, shape.chunks));
  SHALE_RETURN_IF_ERROR(Launch("GroupNormForward", GroupStatisticsKernel, GroupsShape(op.mean_BG), stream, partials,
                               shape.chunks.count, mean, rstd, sizes, op.epsilon));
  return Launch("GroupNormForward", GroupNormForwardKernel<T, kAligned>, shape.launch_shape(), stream, x,
                Whole<T>(op.weight_C, "weight"), Whole<T>(op.bias_C, "bias"), mean, rstd, Whole<T>(op.y_BLC, "y"),
                sizes, shape.chunks);
}

// Scratch holds the partial rows, then the means.
template <class T, bool kAligned>
absl::Status Backward(const GroupNormBackward& op, Scratch scratch, StreamHandle stream) {
  using Source = GroupGradientSource<T, kAligned>;
  const Sizes sizes = SizesOf(op.x_BLC, op.mean_BG);
  const ColumnShape shape = ShapeOf(op.x_BLC);
  const int64_t groups = op.mean_BG.elements();
  const Partials<float> partials(scratch, 2, shape.partial_rows(), sizes.C);
  const int64_t partial_bytes = Partials<float>::Bytes(2, shape.partial_rows(), sizes.C);
  const Global<float> means(reinterpret_cast<float*>(scratch.data + partial_bytes), 2 * groups, "means");
  const Global<T> weight = Whole<T>(op.weight_C, "weight");
  const Source source = {Whole<T>(op.d_y_BLC, "d_y"), Whole<T>(op.x_BLC, "x"), Whole<float>(op.mean_BG, "mean"),
                         Whole<float>(op.rstd_BG, "rstd"), sizes};
  SHALE_RETURN_IF_ERROR(Launch("GroupNormBackward", ColumnSumsKernel<Source>, shape.launch_shape(), stream, source,
                               partials, sizes.L, sizes.C, shape.chunks));
  SHALE_RETURN_IF_ERROR(Launch("GroupNormBackward", GroupMeansKernel<T>, GroupsShape(op.mean_BG), stream, partials,
                               shape.chunks.count, weight, means, sizes));
  SHALE_RETURN_IF_ERROR(Launch("GroupNormBackward", GroupNormBackwardKernel<T, kAligned>, shape.launch_shape(), stream,
                               source, weight, means, Whole<T>(op.d_x_BLC, "d_x"), groups, shape.chunks));
  return SumChunks("GroupNormBackward", partials, op.d_weight_C, op.d_bias_C, op.accumulate, stream);
}

}  // namespace

int64_t ScratchBytesOf(const GroupNormForward& op) {
  return Partials<double>::Bytes(2, ShapeOf(op.x_BLC).partial_rows(), op.x_BLC.dim(2));
}

int64_t ScratchBytesOf(const GroupNormBackward& op) {
  return Partials<float>::Bytes(2, ShapeOf(op.x_BLC).partial_rows(), op.x_BLC.dim(2)) +
         2 * op.mean_BG.elements() * static_cast<int64_t>(sizeof(float));
}

absl::Status Run(const GroupNormForward& op, Scratch scratch, StreamHandle stream) {
  return WithElement(op.x_BLC.dtype, [&](auto element) {
    using T = decltype(element);
    const bool aligned = op.x_BLC.dim(2) % kPackOf<T> == 0 && RowsAligned(op.x_BLC) && RowsAligned(op.weight_C) &&
                         RowsAligned(op.bias_C) && RowsAligned(op.y_BLC);
    return aligned ? Forward<T, true>(op, scratch, stream) : Forward<T, false>(op, scratch, stream);
  });
}

absl::Status Run(const GroupNormBackward& op, Scratch scratch, StreamHandle stream) {
  return WithElement(op.x_BLC.dtype, [&](auto element) {
    using T = decltype(element);
    const bool aligned = op.x_BLC.dim(2) % kPackOf<T> == 0 && RowsAligned(op.d_y_BLC) && RowsAligned(op.x_BLC) &&
                         RowsAligned(op.weight_C) && RowsAligned(op.d_x_BLC);
    return aligned ? Backward<T, true>(op, scratch, stream) : Backward<T, false>(op, scratch, stream);
  });
}

}  // namespace shale::cuda
