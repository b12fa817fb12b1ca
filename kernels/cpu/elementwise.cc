// Sums, copies and additions of flat vectors.
#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/random-inl.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/device/cpu/copy_bytes.h"
#include "kernels/integers.h"
#include "kernels/ops/flat.h"
#include "kernels/reference/scalar_ops.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

// Returns as many elements as `d`, a tag of fp64 vectors, has lanes.
template <class D>
HWY_INLINE hn::Vec<D> LoadDoubles(D d, const float* from) {
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<float, D>(), from));
}
template <class D>
HWY_INLINE hn::Vec<D> LoadDoubles(D d, const BFloat16* from) {
  const hn::Rebind<uint32_t, D> bits;
  const hn::Rebind<uint16_t, D> halves;
  const auto wide = hn::PromoteTo(bits, hn::LoadU(halves, reinterpret_cast<const uint16_t*>(from)));
  return hn::PromoteTo(d, hn::BitCast(hn::Rebind<float, D>(), hn::ShiftLeft<16>(wide)));
}

template <class D>
HWY_INLINE hn::Vec<D> LoadDoubles(D d, const Float16* from) {
  return hn::PromoteTo(d, LoadFloat16s(hn::Rebind<float, D>(), from));
}

// Returns the sum of x, or of its squares, in fp64. Every instruction set gives the same bits: there are always 16
// partial sums, however wide vectors are, and the square of an fp32 is exact in fp64.
template <class T>
double SumT(const T* x, int64_t count, bool squares) {
  constexpr int64_t kSums = 16;
  const hn::CappedTag<double, 8> d;
  const int64_t step = static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN double sums[kSums] = {};
  const int64_t whole = RoundDown(count, kSums);
  // Narrow vectors need several passes over x, so the caller passes blocks that are small enough to stay in cache.
  for (int64_t lane = 0; lane < kSums; lane += 2 * step) {
    auto a = hn::Zero(d), b = hn::Zero(d);
    for (int64_t i = lane; i < whole; i += kSums) {
      auto va = LoadDoubles(d, x + i), vb = LoadDoubles(d, x + i + step);
      if (squares) {
        va = hn::Mul(va, va);
        vb = hn::Mul(vb, vb);
      }
      a = hn::Add(a, va);
      b = hn::Add(b, vb);
    }
    hn::Store(a, d, sums + lane);
    hn::Store(b, d, sums + lane + step);
  }
  for (int64_t i = whole; i < count; ++i) {
    const double value = shale::ToFloat(x[i]);
    sums[i - whole] += squares ? value * value : value;
  }
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}
double SumSquaresOf(const float* x, int64_t count) { return SumT(x, count, /*squares=*/true); }
double SumElements(const Tensor& x_N, int64_t begin, int64_t end, bool squares) {
  double sum = 0;
  ForElementType(x_N.dtype, [&](auto element) HWY_ATTR {
    sum = SumT(x_N.as<const decltype(element)>() + begin, end - begin, squares);
  });
  return sum;
}

template <class From, class To>
void ConvertT(const From* from, To* to, int64_t count) {
  ForVectors(count, [&](int64_t i, auto lanes) HWY_ATTR { lanes.Store(lanes.Load(from + i), to + i); });
}
// Converts elements [begin, end), between f32 and 16 bits.
void ConvertElements(const Copy& op, int64_t begin, int64_t end) {
  const int64_t count = end - begin;
  if (op.from.dtype == DType::kFloat32) {
    const float* const from = op.from.as<const float>() + begin;
    if (op.to.dtype == DType::kBFloat16) return ConvertT(from, op.to.as<BFloat16>() + begin, count);
    return ConvertT(from, op.to.as<Float16>() + begin, count);
  }
  float* const to = op.to.as<float>() + begin;
  if (op.from.dtype == DType::kBFloat16) return ConvertT(op.from.as<const BFloat16>() + begin, to, count);
  ConvertT(op.from.as<const Float16>() + begin, to, count);
}

template <class T>
void AddT(const T* a, const T* b, T* out, int64_t count) {
  Map(
      count, [](Vector x, Vector y) HWY_ATTR { return hn::Add(x, y); }, out, a, b);
}
void AddFloats(const float* a, const float* b, float* out, int64_t count) { AddT(a, b, out, count); }
// Adds elements [begin, end).
void AddElements(const Add& op, int64_t begin, int64_t end) {
  ForActivations(op.out.dtype, [&](auto element) HWY_ATTR {
    using T = decltype(element);
    AddT(op.a.as<const T>() + begin, op.b.as<const T>() + begin, op.out.as<T>() + begin, end - begin);
  });
}

// Adds elements [begin, end) to a bf16 total. `begin` is a multiple of kRandomBlock.
void AccumulateRounded(const Accumulate& op, const RoundingStream& stream, int64_t begin, int64_t end) {
  HWY_ALIGN uint16_t random[kRandomChunk];
  for (int64_t at = begin; at < end; at += kRandomChunk) {
    const int64_t count = std::min(end - at, kRandomChunk);
    const float* x = op.x_N.as<const float>() + at;
    BFloat16* total = op.total_N.as<BFloat16>() + at;
    StoreRandomBits(stream, op.shard_begin + at, count, random);
    ForVectors(count, [&](int64_t i, auto lanes) HWY_ATTR {
      Vector sum = lanes.Load(x + i);
      if (op.accumulate) sum = hn::Add(sum, lanes.Load(total + i));
      StoreStochastically(lanes, sum, random + i, total + i);
    });
  }
}

// Sums elements [begin, end) of the rows.
void SumRowElements(const SumRows& op, int64_t begin, int64_t end) {
  const int64_t rows = op.x_WN.dim(0), stride = op.x_WN.dim(1);
  const BFloat16* x = op.x_WN.as<const BFloat16>() + begin;
  float* total = op.total_N.as<float>() + begin;
  ForVectors(end - begin, [&](int64_t i, auto lanes) HWY_ATTR {
    Vector sum = lanes.Load(x + i);
    for (int64_t w = 1; w < rows; ++w) sum = hn::Add(sum, lanes.Load(x + w * stride + i));
    if (op.accumulate) sum = hn::Add(sum, lanes.Load(total + i));
    lanes.Store(sum, total + i);
  });
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shale::cpu {
namespace {

HWY_EXPORT(SumElements);
HWY_EXPORT(SumSquaresOf);
HWY_EXPORT(ConvertElements);
HWY_EXPORT(AddFloats);
HWY_EXPORT(AddElements);
HWY_EXPORT(AccumulateRounded);
HWY_EXPORT(SumRowElements);

// The blocks of a sum. Each block writes one fp64 to scratch.
Partition SumPartition(int64_t n) { return PartitionOf(n, kElementsPerBlock, /*most=*/4096); }

template <class OpType>
void SumInBlocks(const OpType& op, bool squares, Scratch scratch, const Context& context) {
  const Partition partition = SumPartition(op.x_N.dim(0));
  auto* sums = reinterpret_cast<double*>(scratch.data);
  ParallelFor(*context.team, partition.n, partition.block, [&](int64_t begin, int64_t end) {
    sums[begin / partition.block] = HWY_DYNAMIC_DISPATCH(SumElements)(op.x_N, begin, end, squares);
  });
  double total = 0;
  for (int64_t b = 0; b < partition.blocks(); ++b) total += sums[b];
  double& out = *op.total_1.template as<double>();
  out = op.accumulate ? out + total : total;
}

void CopyInBlocks(const Tensor& from, const Tensor& to, Team& team) {
  constexpr int64_t kBlock = 1 << 18;
  const int64_t size_bytes = from.extent_bytes();
  // The choice depends on the full size, because the caches would have to hold all of it, not just a block.
  const auto copy = size_bytes >= kLargeCopyBytes ? CopyPastCaches : CopyBytes;
  ParallelFor(team, size_bytes, kBlock, [&](int64_t begin, int64_t end) {
    copy(to.as<std::byte>() + begin, from.as<const std::byte>() + begin, end - begin);
  });
}

}  // namespace

double SumOfSquares(const float* x, int64_t count) { return HWY_DYNAMIC_DISPATCH(SumSquaresOf)(x, count); }

int64_t ScratchBytesOf(const Sum& op, const Context& context) {
  return SumPartition(op.x_N.dim(0)).blocks() * static_cast<int64_t>(sizeof(double));
}

absl::Status Run(const Sum& op, Scratch scratch, const Context& context) {
  SumInBlocks(op, /*squares=*/false, scratch, context);
  return absl::OkStatus();
}

int64_t ScratchBytesOf(const SumSquares& op, const Context& context) {
  return SumPartition(op.x_N.dim(0)).blocks() * static_cast<int64_t>(sizeof(double));
}

absl::Status Run(const SumSquares& op, Scratch scratch, const Context& context) {
  SumInBlocks(op, /*squares=*/true, scratch, context);
  return absl::OkStatus();
}

absl::Status Run(const Copy& op, Scratch scratch, const Context& context) {
  if (op.from.dtype == op.to.dtype) {
    CopyInBlocks(op.from, op.to, *context.team);
    return absl::OkStatus();
  }
  ParallelFor(*context.team, op.from.elements(), kElementsPerBlock, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(ConvertElements)(op, begin, end);
  });
  return absl::OkStatus();
}

absl::Status Run(const Add& op, Scratch scratch, const Context& context) {
  ParallelFor(*context.team, op.out.elements(), kElementsPerBlock, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(AddElements)(op, begin, end);
  });
  return absl::OkStatus();
}

absl::Status Run(const Accumulate& op, Scratch scratch, const Context& context) {
  if (op.rounds()) {
    const RoundingStream stream = RoundingOf(op);
    ParallelFor(*context.team, op.x_N.dim(0), kElementsPerBlock, [&](int64_t begin, int64_t end) {
      HWY_DYNAMIC_DISPATCH(AccumulateRounded)(op, stream, begin, end);
    });
    return absl::OkStatus();
  }
  const float* x = op.x_N.as<const float>();
  float* total = op.total_N.as<float>();
  if (!op.accumulate) {
    CopyInBlocks(op.x_N, op.total_N, *context.team);
    return absl::OkStatus();
  }
  ParallelFor(*context.team, op.x_N.dim(0), kElementsPerBlock, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(AddFloats)(total + begin, x + begin, total + begin, end - begin);
  });
  return absl::OkStatus();
}

absl::Status Run(const SumRows& op, Scratch scratch, const Context& context) {
  ParallelFor(*context.team, op.total_N.dim(0), kElementsPerBlock, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(SumRowElements)(op, begin, end);
  });
  return absl::OkStatus();
}

}  // namespace shale::cpu
#endif
