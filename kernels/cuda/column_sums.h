// Sums over the rows of matrices, column by column, in two steps.
//
// [Note: column sums] In the first step each block sums a chunk of rows into a partial row in scratch. In the second
// step another kernel sums the partial rows of all chunks in their order. The division of rows into chunks depends on
// shapes alone. A kernel that reads the rows for another purpose may do the first step itself (norm_backward.cu).
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/work_division.h"
#include "kernels/integers.h"
#include "kernels/op_backend.h"

namespace shale::cuda {

// Partial rows in scratch (PartialBytes): `sums` matrices of `rows` partial rows by C columns.
struct Partials {
  Global<float> at;
  int64_t rows, stride;

  Partials(Scratch scratch, int sums, int64_t rows, int64_t C)
      : at(reinterpret_cast<float*>(scratch.data), sums * rows * PartialStride(C), "partials"),
        rows(rows),
        stride(PartialStride(C)) {}

  SHALE_DEVICE int64_t Begin(int sum, int64_t row) const { return (sum * rows + row) * stride; }
};

inline constexpr int kColumnThreads = kColumnLanes * kRowSlots;
inline constexpr int kRowsInFlight = 4;  // Rows that one thread requests at once.

template <class T>
inline constexpr int64_t kColumnsPerBlock = kColumnLanes* kPackOf<T>;

// Returns the launch of a kernel whose blocks own kColumnsPerBlock columns and a chunk of the rows.
inline LaunchShape LaunchOf(const ColumnShape& shape) {
  return {.grid = dim3(static_cast<unsigned>(shape.chunks.count), static_cast<unsigned>(shape.column_blocks)),
          .block = dim3(kColumnLanes, kRowSlots)};
}

// The work of the calling thread of such a kernel: the pack of columns at `c`, in rows begin, begin + kRowSlots, ...
// below `end`.
struct ColumnWork {
  int64_t c, begin, end;

  SHALE_DEVICE ColumnWork(int kPack, int64_t rows, int64_t rows_per_chunk)
      : c((static_cast<int64_t>(blockIdx.y) * kColumnLanes + threadIdx.x) * kPack) {
    const int64_t first = blockIdx.x * rows_per_chunk;
    begin = first + threadIdx.y;
    end = first + rows_per_chunk < rows ? first + rows_per_chunk : rows;
  }
};

// Does the first step. A Source defines what is summed: kSums sums for each column. The kernel keeps registers few
// enough for kBlocksPerSm blocks per SM.
//   Loaded Load(row, c, C)  loads the operands of one row
//   Add(loaded, sums)       adds these operands to `sums`
template <class Source>
SHALE_KERNEL SHALE_BOUNDS(kColumnThreads, Source::kBlocksPerSm)
    ColumnSumsKernel(Source source, Partials partials, int64_t rows, int64_t C, int64_t rows_per_chunk) {
  constexpr int kPack = Source::kPack, kSums = Source::kSums;
  const ColumnWork work(kPack, rows, rows_per_chunk);
  float sums[kSums][kPack] = {};
  for (int64_t row = work.begin; row < work.end; row += kRowsInFlight * kRowSlots) {
    typename Source::Loaded loaded[kRowsInFlight];
    SHALE_UNROLL
    for (int k = 0; k < kRowsInFlight; ++k) {
      if (row + k * kRowSlots < work.end) loaded[k] = source.Load(row + k * kRowSlots, work.c, C);
    }
    SHALE_UNROLL
    for (int k = 0; k < kRowsInFlight; ++k) {
      if (row + k * kRowSlots < work.end) source.Add(loaded[k], sums);
    }
  }
  SHALE_SHARED_ARRAY(float, of_slot, kRowSlots* kPack* kColumnLanes);
  const int i = static_cast<int>(threadIdx.y), lane = static_cast<int>(threadIdx.x);
  SHALE_UNROLL
  for (int s = 0; s < kSums; ++s) {
    if (s > 0) __syncthreads();
    SHALE_UNROLL
    for (int k = 0; k < kPack; ++k) of_slot.Store((i * kPack + k) * kColumnLanes + lane, sums[s][k]);
    __syncthreads();
    if (i < kPack && work.c + i < C) {
      float total = 0;
      for (int slot = 0; slot < kRowSlots; ++slot) total += of_slot.Load((slot * kPack + i) * kColumnLanes + lane);
      partials.at.Store(partials.Begin(s, blockIdx.x) + work.c + i, total);
    }
  }
}

// SumChunksKernel does the second step: column c of `first` (+)= the sum of its partial rows, and likewise `second` if
// there is a second sum.
inline constexpr int kChunkLanes = 8;  // Each owns 16 bytes of columns.
inline constexpr int kChunkSlots = 32;
inline constexpr int kChunkThreads = kChunkLanes * kChunkSlots;

template <class Out>
SHALE_KERNEL SHALE_BOUNDS(kChunkThreads)
    SumChunksKernel(Partials partials, Global<Out> first, Global<Out> second, int64_t C, bool accumulate) {
  constexpr int kPack = kPackOf<float>, kColumns = kChunkLanes * kPack;
  const int sum = static_cast<int>(blockIdx.y), slot = static_cast<int>(threadIdx.y);
  const int64_t block_c = static_cast<int64_t>(blockIdx.x) * kColumns, c = block_c + threadIdx.x * kPack;
  Pack<float, kPack> total = {};
  // Partial rows are whole packs, so columns past C are summed too, but never stored.
  for (int64_t row = slot; row < partials.rows && c < C; row += kRowsInFlight * kChunkSlots) {
    Pack<float, kPack> loaded[kRowsInFlight];
    SHALE_UNROLL
    for (int k = 0; k < kRowsInFlight; ++k) {
      const int64_t at = row + k * kChunkSlots;
      if (at < partials.rows) loaded[k] = partials.at.template Load<kPack>(partials.Begin(sum, at) + c);
    }
    SHALE_UNROLL
    for (int k = 0; k < kRowsInFlight; ++k) {
      SHALE_UNROLL
      for (int i = 0; i < kPack; ++i) total.at[i] += row + k * kChunkSlots < partials.rows ? loaded[k].at[i] : 0.0f;
    }
  }
  SHALE_SHARED_ARRAY(float, of_slot, kChunkSlots* kColumns);
  of_slot.Store(slot * kColumns + static_cast<int>(threadIdx.x) * kPack, total);
  __syncthreads();
  const int column = slot * kChunkLanes + static_cast<int>(threadIdx.x);
  if (column >= kColumns || block_c + column >= C) return;
  float all = 0;
  for (int s = 0; s < kChunkSlots; ++s) all += of_slot.Load(s * kColumns + column);
  const Global<Out> out = sum == 0 ? first : second;
  out.Store(block_c + column, accumulate ? out.Load(block_c + column) + all : all);
}

// Enqueues the second step on `stream`. `second` is absent if there is only one sum.
inline absl::Status SumChunks(const char* name, const Partials& partials, const Tensor& first, const Tensor& second,
                              bool accumulate, StreamHandle stream) {
  constexpr int64_t kColumns = kChunkLanes * kPackOf<float>;
  const int64_t C = first.elements();
  const LaunchShape shape = {.grid = dim3(static_cast<unsigned>(CeilDivide(C, kColumns)), second.present() ? 2 : 1),
                             .block = dim3(kChunkLanes, kChunkSlots)};
  return Launch(name, SumChunksKernel<float>, shape, stream, partials, Whole<float>(first, "first gradient"),
                Whole<float>(second, "second gradient"), C, accumulate);
}

}  // namespace shale::cuda
