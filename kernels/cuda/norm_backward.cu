// RMSNorm and LayerNorm, backward.
//
// A block owns a chunk of rows, and each of its teams owns one row at a time (see row_tile.h). It reads d_y, x (and
// d_residual) once from memory and writes d_x once, so the kernel is bound by memory. It requests the next row before
// it reduces the present one, so that the memory is never idle while it waits for a sum. The gradients of weight and
// bias are column sums (column_sums.h), which the same loop accumulates in registers, also if the op wants only d_x. A
// thread reads the elements that it owns before it writes there, so that d_x may be d_y or d_residual. Rows too wide
// for the largest team are processed tile by tile, after a separate kernel has computed the column sums.
#include "kernels/check.h"
#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/row_tile.h"
#include "kernels/ops/norm.h"

namespace shale::cuda {
namespace {

// The operands of LayerNorm, which has `mean`, if kCentered is set, else those of RMSNorm.
template <class T, bool kCentered>
struct Operands {
  Rows<T> d_y, x;
  Global<T> weight;
  Global<float> mean, rstd;
  Rows<T> d_residual, d_x;
  int64_t R, C;
  float weight_offset;
};

struct Statistics {
  float mean, rstd;
};

template <class T, bool kCentered>
SHALE_DEVICE Statistics StatisticsOf(const Operands<T, kCentered>& op, int64_t row) {
  return {kCentered ? op.mean.Load(row) : 0.0f, op.rstd.Load(row)};
}

// Returns the normalized element.
template <bool kCentered>
SHALE_DEVICE float Normal(float x, const Statistics& s) {
  return kCentered ? (x - s.mean) * s.rstd : x * s.rstd;
}

// Returns d_x without d_residual, where g = d_y weight and n is the normalized element. means[0] is mean(g n), and for
// LayerNorm means[1] is mean(g).
template <bool kCentered>
SHALE_DEVICE float GradientOf(float g, float n, const float* means, float rstd) {
  return rstd * fmaf(-n, means[0], kCentered ? g - means[1] : g);
}

// Whether a team requests a row ahead. LayerNorm has twice as many sums of columns, and rows that are not aligned need
// an address and a predicate for each element, so that the operands of another row would not fit in registers.
template <class Tile, bool kCentered>
constexpr bool kAhead = Tile::kWholePacks && !kCentered;

// Whether a team keeps the weight in registers for all of its rows. LayerNorm of rows that are not aligned would need
// more registers than a thread may have, and reads it again for each row.
template <class Tile, bool kCentered>
constexpr bool kKeepsWeight = Tile::kWholePacks || !kCentered;

// What a team reads of a row.
template <class Tile>
struct RowOperands {
  Tile d_y, x, residual;
  Statistics statistics;
};

// Adds the elements of a tile to the sums over a row: g n, and for LayerNorm g.
template <bool kCentered, class Tile, int kSums>
SHALE_DEVICE void AddProducts(const Tile& d_y, const Tile& x, const Tile& w, float weight_offset, const Statistics& s,
                              HalfSums<Tile, kSums>& sums) {
  ForEachElement<Tile>([&](int p, int i) {
    const float g = Widen(d_y.at[p].at[i]) * (weight_offset + Widen(w.at[p].at[i]));
    sums.Of(0, p) = fmaf(g, Normal<kCentered>(Widen(x.at[p].at[i]), s), sums.Of(0, p));
    if constexpr (kCentered) sums.Of(1, p) += g;
  });
}

// Replaces d_y by d_x, to which it adds `residual` if `add` is set.
template <bool kCentered, class Tile, class T = typename Tile::Element>
SHALE_DEVICE void ToInputGradient(Tile& d_y, const Tile& x, const Tile& w, float weight_offset, const Statistics& s,
                                  const float* means, bool add, const Tile& residual) {
  ForEachElement<Tile>([&](int p, int i) {
    const float g = Widen(d_y.at[p].at[i]) * (weight_offset + Widen(w.at[p].at[i]));
    const float d_x = GradientOf<kCentered>(g, Normal<kCentered>(Widen(x.at[p].at[i]), s), means, s.rstd);
    d_y.at[p].at[i] = Narrow<T>(add ? Widen(residual.at[p].at[i]) + d_x : d_x);
  });
}

// The column sums of the elements that a thread owns.
template <class Tile, int kSums>
using OwnedSums = float[kSums][Tile::kPacksPerThread * Tile::kPack];

// Adds the column sums of the teams, in the order of teams, and stores them as those of the block's chunk.
template <class Tile, int kSums>
SHALE_DEVICE void StoreColumns(const OwnedSums<Tile, kSums>& columns, int64_t C, const Partials& partials) {
  constexpr int kPack = Tile::kPack, kOwned = Tile::kPacksPerThread * kPack;
  constexpr int kTeam = Tile::kTeamThreads;
  SHALE_SHARED_ARRAY(float, of_team, Tile::kTeams > 1 ? Tile::kTeams * kOwned * kTeam : 1);
  const int member = static_cast<int>(threadIdx.x), team = static_cast<int>(threadIdx.y);
  SHALE_UNROLL
  for (int k = 0; k < kSums; ++k) {
    const int64_t out = partials.Begin(k, blockIdx.x);
    if constexpr (Tile::kTeams > 1) {
      if (k > 0) __syncthreads();
      SHALE_UNROLL
      for (int e = 0; e < kOwned; ++e) of_team.Store((team * kOwned + e) * kTeam + member, columns[k][e]);
      __syncthreads();
      for (int e = team; e < kOwned; e += Tile::kTeams) {
        const int64_t c = Tile::Column(0, e / kPack) + e % kPack;
        float total = 0;
        for (int t = 0; t < Tile::kTeams; ++t) total += of_team.Load((t * kOwned + e) * kTeam + member);
        if (c < C) partials.at.Store(out + c, total);
      }
    } else {
      ForEachElement<Tile>([&](int p, int i) {
        if (Tile::Column(0, p) + i < C) partials.at.Store(out + Tile::Column(0, p) + i, columns[k][p * kPack + i]);
      });
    }
  }
}

template <class Tile, bool kCentered, class T = typename Tile::Element>
SHALE_KERNEL SHALE_BOUNDS(Tile::kThreads, Tile::kRowTeam.backward_blocks)
    NormBackwardKernel(Operands<T, kCentered> op, Partials partials, int64_t rows_per_chunk) {
  constexpr int kPack = Tile::kPack, kSums = kCentered ? 2 : 1;
  const int64_t C = op.C, begin = blockIdx.x * rows_per_chunk;
  const int64_t end_row = begin + rows_per_chunk < op.R ? begin + rows_per_chunk : op.R;
  const bool add = op.d_residual.at.present();
  const auto load = [&](int64_t row, RowOperands<Tile>& to) {
    const int64_t end = row < end_row ? C : 0;
    to.d_y.Load(op.d_y.at, op.d_y.Begin(row), 0, end);
    to.x.Load(op.x.at, op.x.Begin(row), 0, end);
    if (add) to.residual.Load(op.d_residual.at, op.d_residual.Begin(row), 0, end);
    to.statistics = end > 0 ? StatisticsOf(op, row) : Statistics{};
  };
  RowOperands<Tile> next;
  if constexpr (kAhead<Tile, kCentered>) load(begin + threadIdx.y, next);
  Tile w;
  if constexpr (kKeepsWeight<Tile, kCentered>) w.Load(op.weight, 0, 0, C);
  OwnedSums<Tile, kSums> columns = {};  // Those of d_weight and d_bias.
  int turn = 0;
  for (int64_t first = begin; first < end_row; first += Tile::kTeams, turn ^= 1) {
    const int64_t row = first + threadIdx.y, end = row < end_row ? C : 0;
    RowOperands<Tile> now;
    if constexpr (kAhead<Tile, kCentered>) {
      now = next;
      load(row + Tile::kTeams, next);
    } else {
      load(row, now);
    }
    if constexpr (!kKeepsWeight<Tile, kCentered>) w.Load(op.weight, 0, 0, C);
    HalfSums<Tile, kSums> sums;
    AddProducts<kCentered>(now.d_y, now.x, w, op.weight_offset, now.statistics, sums);
    ForEachElement<Tile>([&](int p, int i) {
      const float d_y = Widen(now.d_y.at[p].at[i]);
      const float n = Normal<kCentered>(Widen(now.x.at[p].at[i]), now.statistics);
      columns[0][p * kPack + i] = fmaf(d_y, n, columns[0][p * kPack + i]);
      if constexpr (kCentered) columns[1][p * kPack + i] += d_y;
    });
    float means[kSums];
    SumOverTeam<Tile, 0>(sums, means, turn);
    SHALE_UNROLL
    for (int k = 0; k < kSums; ++k) means[k] /= static_cast<float>(C);
    ToInputGradient<kCentered>(now.d_y, now.x, w, op.weight_offset, now.statistics, means, add, now.residual);
    now.d_y.Store(op.d_x.at, op.d_x.Begin(row), 0, end);
  }
  StoreColumns<Tile, kSums>(columns, C, partials);
}

// Computes d_x of rows wider than a tile.
template <class Tile, bool kCentered, class T = typename Tile::Element>
SHALE_KERNEL SHALE_BOUNDS(Tile::kThreads, Tile::kRowTeam.backward_blocks) WideRowsKernel(Operands<T, kCentered> op) {
  const int64_t row = blockIdx.x, C = op.C;
  const int64_t d_y_row = op.d_y.Begin(row), x_row = op.x.Begin(row), d_x_row = op.d_x.Begin(row);
  const bool add = op.d_residual.at.present();
  const int64_t residual_row = add ? op.d_residual.Begin(row) : 0;
  const Statistics s = StatisticsOf(op, row);
  constexpr int kSums = kCentered ? 2 : 1;
  Tile d_y, x, w, r;
  const auto load = [&](int64_t tile) {
    d_y.Load(op.d_y.at, d_y_row, tile, C);
    x.Load(op.x.at, x_row, tile, C);
    w.Load(op.weight, 0, tile, C);
  };
  HalfSums<Tile, kSums> sums;
  for (int64_t tile = 0; tile < C; tile += Tile::kWidth) {
    load(tile);
    AddProducts<kCentered>(d_y, x, w, op.weight_offset, s, sums);
  }
  float means[kSums];
  SumOverTeam<Tile, 0>(sums, means, 0);
  for (float& mean : means) mean /= static_cast<float>(C);
  for (int64_t tile = 0; tile < C; tile += Tile::kWidth) {
    load(tile);
    if (add) r.Load(op.d_residual.at, residual_row, tile, C);
    ToInputGradient<kCentered>(d_y, x, w, op.weight_offset, s, means, add, r);
    d_y.Store(op.d_x.at, d_x_row, tile, C);
  }
}

// A Source for ColumnSumsKernel, for the column sums of rows wider than a tile.
template <class T, bool kCentered, bool kAligned>
struct NormColumns {
  static constexpr int kSums = kCentered ? 2 : 1, kPack = kPackOf<T>, kBlocksPerSm = 2;
  struct Loaded {
    Pack<T, kPack> d_y, x;
    Statistics statistics;
  };

  Operands<T, kCentered> op;

  SHALE_DEVICE Loaded Load(int64_t row, int64_t c, int64_t C) const {
    return {LoadPack<kAligned>(op.d_y.at, op.d_y.Begin(row), c, C), LoadPack<kAligned>(op.x.at, op.x.Begin(row), c, C),
            StatisticsOf(op, row)};
  }
  SHALE_DEVICE void Add(const Loaded& loaded, float (&sums)[kSums][kPack]) const {
    SHALE_UNROLL
    for (int i = 0; i < kPack; ++i) {
      const float d_y = Widen(loaded.d_y.at[i]);
      sums[0][i] = fmaf(d_y, Normal<kCentered>(Widen(loaded.x.at[i]), loaded.statistics), sums[0][i]);
      if constexpr (kCentered) sums[1][i] += d_y;
    }
  }
};

template <class T, bool kCentered, bool kAligned>
absl::Status Start(const char* name, const Operands<T, kCentered>& op, const Partials& partials, StreamHandle stream) {
  return WithTile<T, kAligned>(op.C, [&](auto tile) {
    using Tile = decltype(tile);
    const dim3 block(Tile::kTeamThreads, Tile::kTeams);
    if constexpr (Tile::kLargest) {
      if (op.C > Tile::kWidth) {
        const ColumnShape shape = ColumnShape::Of(kDTypeOf<T>, op.R, op.C);
        SHALE_RETURN_IF_ERROR(Launch(name, ColumnSumsKernel<NormColumns<T, kCentered, kAligned>>, LaunchOf(shape),
                                     stream, NormColumns<T, kCentered, kAligned>{op}, partials, op.R, op.C,
                                     shape.chunks.per_chunk));
        return Launch(name, WideRowsKernel<Tile, kCentered>,
                      {.grid = dim3(static_cast<unsigned>(op.R)), .block = block}, stream, op);
      }
    }
    const Chunks chunks = NormBackwardChunks(Tile::kRowTeam, op.R);
    return Launch(name, NormBackwardKernel<Tile, kCentered>,
                  {.grid = dim3(static_cast<unsigned>(chunks.count)), .block = block}, stream, op, partials,
                  chunks.per_chunk);
  });
}

template <bool kCentered, class OpType>
absl::Status RunBackward(const OpType& op, const Tensor& mean, const Tensor& d_bias, float weight_offset,
                         Scratch scratch, StreamHandle stream) {
  const int64_t C = op.x.dim(-1), R = op.rstd_R.elements();
  const bool aligned = C % (16 / SizeOf(op.x.dtype)) == 0 && RowsAligned(op.d_y) && RowsAligned(op.x) &&
                       RowsAligned(op.weight_C) && RowsAligned(op.d_residual) && RowsAligned(op.d_x);
  const Partials partials(scratch, kCentered ? 2 : 1, NormPartialRows(op.x.dtype, R, C), C);
  SHALE_RETURN_IF_ERROR(WithElement(op.x.dtype, [&](auto element) {
    using T = decltype(element);
    const Operands<T, kCentered> operands = {
        .d_y = Rows<T>(op.d_y, "d_y"),
        .x = Rows<T>(op.x, "x"),
        .weight = Whole<T>(op.weight_C, "weight"),
        .mean = Whole<float>(mean, "mean"),
        .rstd = Whole<float>(op.rstd_R, "rstd"),
        .d_residual = Rows<T>(op.d_residual, "d_residual"),
        .d_x = Rows<T>(op.d_x, "d_x"),
        .R = R,
        .C = C,
        .weight_offset = weight_offset,
    };
    return aligned ? Start<T, kCentered, true>(OpType::kName.data(), operands, partials, stream)
                   : Start<T, kCentered, false>(OpType::kName.data(), operands, partials, stream);
  }));
  if (op.d_weight_C.present()) {
    return SumChunks(OpType::kName.data(), partials, op.d_weight_C, d_bias, op.accumulate, stream);
  }
  if (!d_bias.present()) return absl::OkStatus();
  // The partial rows of d_bias follow those of d_weight.
  scratch.data += PartialBytes(1, partials.rows, C);
  return SumChunks(OpType::kName.data(), Partials(scratch, 1, partials.rows, C), d_bias, Tensor(), op.accumulate,
                   stream);
}

}  // namespace

absl::Status Run(const RmsNormBackward& op, Scratch scratch, StreamHandle stream) {
  return RunBackward<false>(op, Tensor(), Tensor(), op.weight_offset, scratch, stream);
}

absl::Status Run(const LayerNormBackward& op, Scratch scratch, StreamHandle stream) {
  return RunBackward<true>(op, op.mean_R, op.d_bias_C, 0.0f, scratch, stream);
}

}  // namespace shale::cuda
