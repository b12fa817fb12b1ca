// Copies, additions, and the zeroing of gaps in flat vectors.
//
// The kernels make one pass and are bound by memory. A thread owns 16 elements in packs of 16 bytes (of 8 elements if
// an operand is bf16 or f16). It reads each pack before it writes there, so that an output may be an input. Operands
// that do not begin at 16-byte addresses go element by element.
#include <algorithm>
#include <array>
#include <vector>

#include "kernels/check.h"
#include "kernels/cuda/flat.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/rounding.h"
#include "kernels/integers.h"
#include "kernels/ops/flat.h"

namespace shale::cuda {
namespace {

// ZeroRanges: the number of ranges that one launch takes as its parameters.
constexpr int kRangesPerLaunch = 64;
// Elements of a range that one block zeroes. Gaps between parameters are smaller than 256 bytes, but the padding at the
// end of a flat group grows with the number of ranks.
constexpr int64_t kZeroedPerBlock = 4096;

struct SomeRanges {
  ElementRange at[kRangesPerLaunch];
};

// Copies words without interpreting their bits.
template <class Word, int N>
SHALE_KERNEL SHALE_BOUNDS(kFlatThreads) CopyBitsKernel(Global<Word> from, Global<Word> to, int64_t n) {
  ForEachFlatPiece<N>(
      n, [&](auto width, int64_t i) { return from.template Load<decltype(width)::value>(i); },
      [&](auto width, int64_t i, const auto& pack) { to.template Store<decltype(width)::value>(i, pack); });
}

template <class From, class To, int N>
SHALE_KERNEL SHALE_BOUNDS(kFlatThreads) ConvertKernel(Global<From> from, Global<To> to, int64_t n) {
  ForEachFlatPiece<N>(
      n, [&](auto width, int64_t i) { return LoadFloats<decltype(width)::value>(from, i); },
      [&](auto width, int64_t i, const auto& floats) { StoreFloats(to, i, floats); });
}

template <class T, int N>
SHALE_KERNEL SHALE_BOUNDS(kFlatThreads) AddKernel(Global<T> a, Global<T> b, Global<T> out, int64_t n) {
  ForEachFlatPiece<N>(
      n,
      [&](auto width, int64_t i) {
        constexpr int kCount = decltype(width)::value;
        Floats<kCount> sum = LoadFloats<kCount>(a, i);
        const Floats<kCount> more = LoadFloats<kCount>(b, i);
        for (int k = 0; k < kCount; ++k) sum.at[k] += more.at[k];
        return sum;
      },
      [&](auto width, int64_t i, const auto& sum) { StoreFloats(out, i, sum); });
}

// `stream` lacks the number of the update and the micro-batch, which are on the device.
template <int N>
SHALE_KERNEL SHALE_BOUNDS(kFlatThreads)
    AccumulateRoundedKernel(Global<float> x, Global<BFloat16> total, Global<int64_t> update_count,
                            Global<int64_t> micro_batch, RoundingStream stream, int64_t shard_begin, bool accumulate,
                            int64_t n) {
  ForEachFlatPiece<N>(
      n,
      [&](auto width, int64_t i) {
        constexpr int kCount = decltype(width)::value;
        Floats<kCount> sum = LoadFloats<kCount>(x, i);
        if (!accumulate) return sum;
        const Floats<kCount> before = LoadFloats<kCount>(total, i);
        for (int k = 0; k < kCount; ++k) sum.at[k] += before.at[k];
        return sum;
      },
      [&](auto width, int64_t i, const auto& sum) {
        RoundingStream own = stream;
        own.number = update_count.Load(0) + 1;
        own.micro_batch = micro_batch.present() ? micro_batch.Load(0) : 0;
        StoreRounded<decltype(width)::value>(total, i, sum, own, shard_begin);
      });
}

// x has `rows` rows of n elements.
template <int N>
SHALE_KERNEL SHALE_BOUNDS(kFlatThreads)
    SumRowsKernel(Global<BFloat16> x, Global<float> total, int64_t rows, int64_t n, bool accumulate) {
  ForEachFlatPiece<N>(
      n,
      [&](auto width, int64_t i) {
        constexpr int kCount = decltype(width)::value;
        Floats<kCount> sum = LoadFloats<kCount>(x, i);
        const auto add = [&](const Floats<kCount>& more) {
          for (int k = 0; k < kCount; ++k) sum.at[k] += more.at[k];
        };
        for (int64_t row = 1; row < rows; ++row) add(LoadFloats<kCount>(x, row * n + i));
        if (accumulate) add(LoadFloats<kCount>(total, i));
        return sum;
      },
      [&](auto width, int64_t i, const auto& sum) { StoreFloats(total, i, sum); });
}

// blockIdx.y is the range.
template <class T>
SHALE_KERNEL SHALE_BOUNDS(kFlatThreads) ZeroRangesKernel(Global<T> x, SomeRanges ranges) {
  const int64_t begin = ranges.at[blockIdx.y].begin + blockIdx.x * kZeroedPerBlock;
  const int64_t range_end = ranges.at[blockIdx.y].end;
  const int64_t end = range_end - begin < kZeroedPerBlock ? range_end : begin + kZeroedPerBlock;
  for (int64_t i = begin + threadIdx.x; i < end; i += kFlatThreads) x.Store(i, Narrow<T>(0.0f));
}

template <class Word>
absl::Status CopyWords(const char* name, const Tensor& from, const Tensor& to, StreamHandle stream) {
  const int64_t n = from.elements() * SizeOf(from.dtype) / static_cast<int64_t>(sizeof(Word));
  if (n == 0) return absl::OkStatus();
  return WithWidth<kPackOf<Word>>(Aligned16(from) && Aligned16(to), [&](auto width) {
    return Launch(name, CopyBitsKernel<Word, decltype(width)::value>, FlatShape(n), stream,
                  Global<Word>(from.as<Word>(), n, "from"), Global<Word>(to.as<Word>(), n, "to"), n);
  });
}

template <class From, class To>
absl::Status Convert(const Copy& op, StreamHandle stream) {
  const int64_t n = op.from.elements();
  if (n == 0) return absl::OkStatus();
  return WithWidth<kPackOf<BFloat16>>(Aligned16(op.from) && Aligned16(op.to), [&](auto width) {
    return Launch("Copy", ConvertKernel<From, To, decltype(width)::value>, FlatShape(n), stream,
                  Whole<From>(op.from, "from"), Whole<To>(op.to, "to"), n);
  });
}

template <class T>
absl::Status AddFlat(const char* name, const Tensor& a, const Tensor& b, const Tensor& out, StreamHandle stream) {
  const int64_t n = out.elements();
  if (n == 0) return absl::OkStatus();
  return WithWidth<kPackOf<T>>(Aligned16(a) && Aligned16(b) && Aligned16(out), [&](auto width) {
    return Launch(name, AddKernel<T, decltype(width)::value>, FlatShape(n), stream, Whole<T>(a, "a"), Whole<T>(b, "b"),
                  Whole<T>(out, "out"), n);
  });
}

absl::Status AccumulateRounded(const Accumulate& op, StreamHandle stream) {
  const int64_t n = op.x_N.elements();
  if (n == 0) return absl::OkStatus();
  return WithWidth<kPackOf<BFloat16>>(Aligned16(op.x_N) && Aligned16(op.total_N), [&](auto width) {
    return Launch("Accumulate", AccumulateRoundedKernel<decltype(width)::value>, FlatShape(n), stream,
                  Whole<float>(op.x_N, "x"), Whole<BFloat16>(op.total_N, "total"),
                  Whole<int64_t>(op.update_count_1, "update_count"), Whole<int64_t>(op.micro_batch_1, "micro_batch"),
                  RoundingStream{.seed = op.seed, .group = op.group, .tensor = op.stream}, op.shard_begin,
                  op.accumulate, n);
  });
}

}  // namespace

absl::Status Run(const SumRows& op, Scratch scratch, StreamHandle stream) {
  const int64_t n = op.total_N.elements();
  if (n == 0) return absl::OkStatus();
  // Then each row begins at a multiple of 16 bytes.
  const bool aligned = Aligned16(op.x_WN) && Aligned16(op.total_N) && n % kPackOf<BFloat16> == 0;
  return WithWidth<kPackOf<BFloat16>>(aligned, [&](auto width) {
    return Launch("SumRows", SumRowsKernel<decltype(width)::value>, FlatShape(n), stream, Whole<BFloat16>(op.x_WN, "x"),
                  Whole<float>(op.total_N, "total"), op.x_WN.dim(0), n, op.accumulate);
  });
}

absl::Status Run(const Copy& op, Scratch scratch, StreamHandle stream) {
  if (op.from.dtype != op.to.dtype) {
    const bool narrows = op.from.dtype == DType::kFloat32;
    if ((narrows ? op.to : op.from).dtype == DType::kFloat16) {
      return narrows ? Convert<float, Float16>(op, stream) : Convert<Float16, float>(op, stream);
    }
    return narrows ? Convert<float, BFloat16>(op, stream) : Convert<BFloat16, float>(op, stream);
  }
  switch (SizeOf(op.from.dtype)) {
    case 1: return CopyWords<uint8_t>("Copy", op.from, op.to, stream);
    case 2: return CopyWords<uint16_t>("Copy", op.from, op.to, stream);
    // An element of eight bytes is copied as two words.
    default: return CopyWords<uint32_t>("Copy", op.from, op.to, stream);
  }
}

absl::Status Run(const Add& op, Scratch scratch, StreamHandle stream) {
  return WithElement(op.out.dtype,
                     [&](auto element) { return AddFlat<decltype(element)>("Add", op.a, op.b, op.out, stream); });
}

absl::Status Run(const Accumulate& op, Scratch scratch, StreamHandle stream) {
  if (op.rounds()) return AccumulateRounded(op, stream);
  if (!op.accumulate) return CopyWords<uint32_t>("Accumulate", op.x_N, op.total_N, stream);
  return AddFlat<float>("Accumulate", op.total_N, op.x_N, op.total_N, stream);
}

absl::Status Run(const ZeroRanges& op, Scratch scratch, StreamHandle stream) {
  const std::vector<ElementRange>& ranges = *op.ranges;
  for (size_t first = 0; first < ranges.size(); first += kRangesPerLaunch) {
    const size_t count = std::min<size_t>(kRangesPerLaunch, ranges.size() - first);
    SomeRanges some = {};
    std::copy_n(ranges.begin() + first, count, some.at);
    int64_t longest = 0;
    for (size_t i = 0; i < count; ++i) longest = std::max(longest, some.at[i].end - some.at[i].begin);
    if (longest == 0) continue;
    const unsigned blocks = static_cast<unsigned>(CeilDivide(longest, kZeroedPerBlock));
    const LaunchShape shape = {.grid = dim3(blocks, static_cast<unsigned>(count)), .block = dim3(kFlatThreads)};
    SHALE_RETURN_IF_ERROR(WithElement(op.x_N.dtype, [&](auto element) {
      using T = decltype(element);
      return Launch("ZeroRanges", ZeroRangesKernel<T>, shape, stream, Whole<T>(op.x_N, "x"), some);
    }));
  }
  return absl::OkStatus();
}

}  // namespace shale::cuda
