// Sums, copies and additions of flat vectors.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/device/cpu/copy_bytes.h"
#include "kernels/integers.h"
#include "kernels/reference/scalar_ops.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

// Returns the sum of x, or of its squares, in fp64. Every instruction set gives the same bits: there are always 16
// partial sums, however wide vectors are, and the square of an fp32 is exact in fp64.
double SumElements(const float* x, int64_t count, bool squares) {
  constexpr int64_t kSums = 16;
  const hn::CappedTag<double, 8> d;
  const hn::Rebind<float, decltype(d)> half;
  const int64_t step = static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN double sums[kSums] = {};
  const int64_t whole = RoundDown(count, kSums);
  // Narrow vectors need several passes over x, so the caller passes blocks that are small enough to stay in cache.
  for (int64_t lane = 0; lane < kSums; lane += 2 * step) {
    auto a = hn::Zero(d), b = hn::Zero(d);
    for (int64_t i = lane; i < whole; i += kSums) {
      auto va = hn::PromoteTo(d, hn::LoadU(half, x + i));
      auto vb = hn::PromoteTo(d, hn::LoadU(half, x + i + step));
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
    const double value = x[i];
    sums[i - whole] += squares ? value * value : value;
  }
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

template <class From, class To>
void ConvertT(const From* from, To* to, int64_t count) {
  ForVectors(count, [&](int64_t i, auto lanes) HWY_ATTR { lanes.Store(lanes.Load(from + i), to + i); });
}
void Round(const float* from, BFloat16* to, int64_t count) { ConvertT(from, to, count); }
void Widen(const BFloat16* from, float* to, int64_t count) { ConvertT(from, to, count); }

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

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shale::cpu {
namespace {

HWY_EXPORT(SumElements);
HWY_EXPORT(Round);
HWY_EXPORT(Widen);
HWY_EXPORT(AddFloats);
HWY_EXPORT(AddElements);

// The blocks of a sum. Each block writes one fp64 to scratch.
Partition SumPartition(int64_t n) { return PartitionOf(n, kElementsPerBlock, /*most=*/4096); }

template <class OpType>
void SumInBlocks(const OpType& op, bool squares, Scratch scratch, const Context& context) {
  const float* x = op.x_N.template as<const float>();
  const Partition partition = SumPartition(op.x_N.dim(0));
  auto* sums = reinterpret_cast<double*>(scratch.data);
  ParallelFor(context.threads, partition.n, partition.block, [&](int64_t begin, int64_t end) {
    sums[begin / partition.block] = HWY_DYNAMIC_DISPATCH(SumElements)(x + begin, end - begin, squares);
  });
  double total = 0;
  for (int64_t b = 0; b < partition.blocks(); ++b) total += sums[b];
  double& out = *op.total_1.template as<double>();
  out = op.accumulate ? out + total : total;
}

void CopyInBlocks(const Tensor& from, const Tensor& to, int threads) {
  constexpr int64_t kBlock = 1 << 18;
  const int64_t size_bytes = from.extent_bytes();
  // The choice depends on the full size, because the caches would have to hold all of it, not just a block.
  const auto copy = size_bytes >= kLargeCopyBytes ? CopyPastCaches : CopyBytes;
  ParallelFor(threads, size_bytes, kBlock, [&](int64_t begin, int64_t end) {
    copy(to.as<std::byte>() + begin, from.as<const std::byte>() + begin, end - begin);
  });
}

}  // namespace

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
    CopyInBlocks(op.from, op.to, context.threads);
    return absl::OkStatus();
  }
  ParallelFor(context.threads, op.from.elements(), kElementsPerBlock, [&](int64_t begin, int64_t end) {
    if (op.to.dtype == DType::kBFloat16) {
      HWY_DYNAMIC_DISPATCH(Round)(op.from.as<const float>() + begin, op.to.as<BFloat16>() + begin, end - begin);
    } else {
      HWY_DYNAMIC_DISPATCH(Widen)(op.from.as<const BFloat16>() + begin, op.to.as<float>() + begin, end - begin);
    }
  });
  return absl::OkStatus();
}

absl::Status Run(const Add& op, Scratch scratch, const Context& context) {
  ParallelFor(context.threads, op.out.elements(), kElementsPerBlock, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(AddElements)(op, begin, end);
  });
  return absl::OkStatus();
}

absl::Status Run(const Accumulate& op, Scratch scratch, const Context& context) {
  const float* x = op.x_N.as<const float>();
  float* total = op.total_N.as<float>();
  if (!op.accumulate) {
    CopyInBlocks(op.x_N, op.total_N, context.threads);
    return absl::OkStatus();
  }
  ParallelFor(context.threads, op.x_N.dim(0), kElementsPerBlock, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(AddFloats)(total + begin, x + begin, total + begin, end - begin);
  });
  return absl::OkStatus();
}

absl::Status Run(const ZeroRanges& op, Scratch scratch, const Context& context) { return RunOnHost(op); }

}  // namespace shale::cpu
#endif
