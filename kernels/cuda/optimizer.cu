// AdamW.
//
// One pass, bound by memory. Per parameter it moves 28 bytes with split masters or an fp32 weight alone, 30 with an
// fp32 master and a bf16 weight, and 32 with an fp32 master and an fp32 weight. A thread owns eight adjacent elements,
// in packs of 16 bytes, and reads them from all tensors before it writes. Operands that do not begin at 16-byte
// addresses go element by element. The edges where weight decay begins and ends are parameters of the launch; a thread
// counts those up to its first element. A shard with more than kMaxEdges edges takes several launches, which touch
// separate elements.
#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/check.h"
#include "kernels/cuda/flat.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/portable.h"
#include "kernels/integers.h"

namespace shale::cuda {
namespace {

constexpr int kPack = kPackOf<BFloat16>;
constexpr int kMaxEdges = 128;
// Makes every launch cover at least one element, even after its end is rounded down to whole packs.
static_assert(kMaxEdges > kPack);

// Where decay begins or ends, as element numbers of a launch, strictly increasing.
struct DecayEdges {
  bool decays_at_first = false;
  int count = 0;
  int64_t at[kMaxEdges] = {};
};

struct Rates {
  float rest1, beta2, rest2, epsilon, weight_decay;  // rest1 is 1 - beta1, rest2 is 1 - beta2.
};

// The same three conversions as in kernels/dtype.h.
SHALE_DEVICE BFloat16 RoundedMaster(float p) {
  const unsigned bits = __float_as_uint(p);
  return {static_cast<uint16_t>(p != p ? bits >> 16 | 0x40 : (bits + 0x8000u) >> 16)};
}
SHALE_DEVICE int16_t LowBits(float p, BFloat16 weight) {
  const unsigned difference = __float_as_uint(p) - (static_cast<unsigned>(weight.bits) << 16);
  return p != p ? int16_t{0} : static_cast<int16_t>(static_cast<uint16_t>(difference));
}
SHALE_DEVICE float Joined(BFloat16 weight, int16_t low) {
  return __uint_as_float((static_cast<unsigned>(weight.bits) << 16) + static_cast<unsigned>(static_cast<int>(low)));
}

// Each of the following structs is one way to store master weights. Load and Store access N of them from element i on.
struct WeightItself {  // fp32 weight alone.
  Global<float> weight;
  explicit WeightItself(const AdamW& op) : weight(Whole<float>(op.weight_P, "weight")) {}
  template <int N>
  SHALE_DEVICE Floats<N> Load(int64_t i) const {
    return LoadFloats<N>(weight, i);
  }
  template <int N>
  SHALE_DEVICE void Store(int64_t i, const Floats<N>& p) const {
    StoreFloats(weight, i, p);
  }
};

struct WideMaster {  // fp32 master, fp32 weight.
  Global<float> master, weight;
  explicit WideMaster(const AdamW& op)
      : master(Whole<float>(op.master_P, "master")), weight(Whole<float>(op.weight_P, "weight")) {}
  template <int N>
  SHALE_DEVICE Floats<N> Load(int64_t i) const {
    return LoadFloats<N>(master, i);
  }
  template <int N>
  SHALE_DEVICE void Store(int64_t i, const Floats<N>& p) const {
    StoreFloats(master, i, p);
    StoreFloats(weight, i, p);
  }
};

struct FloatMaster {  // fp32 master, bf16 weight.
  Global<float> master;
  Global<BFloat16> weight;
  explicit FloatMaster(const AdamW& op)
      : master(Whole<float>(op.master_P, "master")), weight(Whole<BFloat16>(op.weight_P, "weight")) {}
  template <int N>
  SHALE_DEVICE Floats<N> Load(int64_t i) const {
    return LoadFloats<N>(master, i);
  }
  template <int N>
  SHALE_DEVICE void Store(int64_t i, const Floats<N>& p) const {
    Pack<BFloat16, N> weights;
    for (int k = 0; k < N; ++k) weights.at[k] = RoundedMaster(p.at[k]);
    StoreFloats(master, i, p);
    weight.template Store<N>(i, weights);
  }
};

struct SplitMaster {  // bf16 weight and 16 low bits.
  Global<BFloat16> weight;
  Global<int16_t> low;
  explicit SplitMaster(const AdamW& op)
      : weight(Whole<BFloat16>(op.weight_P, "weight")), low(Whole<int16_t>(op.low_P, "low")) {}
  template <int N>
  SHALE_DEVICE Floats<N> Load(int64_t i) const {
    const Pack<BFloat16, N> weights = weight.template Load<N>(i);
    const Pack<int16_t, N> lows = low.template Load<N>(i);
    Floats<N> p;
    for (int k = 0; k < N; ++k) p.at[k] = Joined(weights.at[k], lows.at[k]);
    return p;
  }
  template <int N>
  SHALE_DEVICE void Store(int64_t i, const Floats<N>& p) const {
    Pack<BFloat16, N> weights;
    Pack<int16_t, N> lows;
    for (int k = 0; k < N; ++k) {
      weights.at[k] = RoundedMaster(p.at[k]);
      lows.at[k] = LowBits(p.at[k], weights.at[k]);
    }
    weight.template Store<N>(i, weights);
    low.template Store<N>(i, lows);
  }
};

// Returns the number of edges at or before element i.
SHALE_DEVICE int EdgesUpTo(const DecayEdges& edges, int64_t i) {
  int begin = 0, end = edges.count;
  while (begin < end) {
    const int middle = (begin + end) / 2;
    if (edges.at[middle] <= i) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

// Updates elements [i, i + N).
template <int N, class Master>
SHALE_DEVICE void UpdateElements(const Master& master, const Global<float>& update, const Global<float>& gradient,
                                 const Global<float>& m_P, const Global<float>& v_P, const DecayEdges& edges,
                                 const Rates& rates, int64_t i) {
  const Floats<N> gradients = LoadFloats<N>(gradient, i);
  Floats<N> p = master.template Load<N>(i), m = LoadFloats<N>(m_P, i), v = LoadFloats<N>(v_P, i);
  if (update.Load(kUpdateSkip) != 0) return;
  const float rate = update.Load(kUpdateLearningRate), factor = update.Load(kUpdateGradientFactor);
  const float step = rate / update.Load(kUpdateCorrection1);
  const float root_correction = sqrtf(update.Load(kUpdateCorrection2));
  const float shrink = rate * rates.weight_decay;
  int edge = EdgesUpTo(edges, i);
  for (int k = 0; k < N; ++k) {
    if (k > 0 && edge < edges.count && edges.at[edge] == i + k) ++edge;
    const bool decays = edges.decays_at_first != (edge % 2 != 0);
    const float g = gradients.at[k] * factor;
    if (decays) p.at[k] = fmaf(-shrink, p.at[k], p.at[k]);
    m.at[k] = fmaf(rates.rest1, g - m.at[k], m.at[k]);
    v.at[k] = fmaf(rates.rest2 * g, g, rates.beta2 * v.at[k]);
    p.at[k] -= step * m.at[k] / (sqrtf(v.at[k]) / root_correction + rates.epsilon);
  }
  StoreFloats(m_P, i, m);
  StoreFloats(v_P, i, v);
  master.template Store<N>(i, p);
}

template <class Master, int N>
SHALE_KERNEL AdamWKernel(Master master, Global<float> update, Global<float> gradient, Global<float> m, Global<float> v,
                         DecayEdges edges, Rates rates, int64_t n) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kFlatThreads + threadIdx.x) * N;
  if (i + N <= n) {
    UpdateElements<N>(master, update, gradient, m, v, edges, rates, i);
  } else if constexpr (N > 1) {
    for (int64_t rest = i; rest < n; ++rest) UpdateElements<1>(master, update, gradient, m, v, edges, rates, rest);
  }
}

// Returns the edges of the decayed ranges in a shard of n elements, as element numbers of the shard. Adjacent ranges
// are merged and have no edge between them.
std::vector<int64_t> EdgesOf(const AdamW& op, int64_t n) {
  std::vector<int64_t> edges;
  if (op.decayed == nullptr) return edges;
  for (const ElementRange& range : *op.decayed) {
    const ElementRange own = Intersect({range.begin - op.shard_begin, range.end - op.shard_begin}, {0, n});
    if (own.begin == own.end) continue;
    if (!edges.empty() && edges.back() == own.begin) {
      edges.back() = own.end;
    } else {
      edges.insert(edges.end(), {own.begin, own.end});
    }
  }
  return edges;
}

// Returns `op` restricted to elements [begin, end) of its shard.
AdamW PartOf(AdamW op, int64_t begin, int64_t end) {
  for (Tensor* t : {&op.gradient_P, &op.weight_P, &op.master_P, &op.low_P, &op.m_P, &op.v_P}) {
    if (t->present()) *t = t->Slice(0, begin, end - begin);
  }
  return op;
}

template <class Master>
absl::Status Start(const AdamW& op, const DecayEdges& edges, StreamHandle stream) {
  const int64_t n = op.weight_P.elements();
  const bool packs = Aligned16(op.gradient_P) && Aligned16(op.weight_P) && Aligned16(op.master_P) &&
                     Aligned16(op.low_P) && Aligned16(op.m_P) && Aligned16(op.v_P);
  const Rates rates = {.rest1 = 1 - op.beta1,
                       .beta2 = op.beta2,
                       .rest2 = 1 - op.beta2,
                       .epsilon = op.epsilon,
                       .weight_decay = op.weight_decay};
  const int64_t per_block = kFlatThreads * (packs ? kPack : 1);
  const LaunchShape shape = {.grid = dim3(static_cast<unsigned>(CeilDivide(n, per_block))),
                             .block = dim3(kFlatThreads)};
  const auto kernel = packs ? AdamWKernel<Master, kPack> : AdamWKernel<Master, 1>;
  return Launch("AdamW", kernel, shape, stream, Master(op), Whole<float>(op.update_5, "update"),
                Whole<float>(op.gradient_P, "gradient"), Whole<float>(op.m_P, "m"), Whole<float>(op.v_P, "v"), edges,
                rates, n);
}

absl::Status StartPart(const AdamW& op, const DecayEdges& edges, StreamHandle stream) {
  if (op.low_P.present()) return Start<SplitMaster>(op, edges, stream);
  if (!op.master_P.present()) return Start<WeightItself>(op, edges, stream);
  if (op.weight_P.dtype == DType::kFloat32) return Start<WideMaster>(op, edges, stream);
  return Start<FloatMaster>(op, edges, stream);
}

}  // namespace

absl::Status Run(const AdamW& op, Scratch scratch, StreamHandle stream) {
  const int64_t n = op.weight_P.elements();
  const std::vector<int64_t> all = EdgesOf(op, n);
  size_t next = 0;
  for (int64_t begin = 0; begin < n;) {
    while (next < all.size() && all[next] <= begin) ++next;
    DecayEdges edges = {.decays_at_first = next % 2 != 0};
    edges.count = static_cast<int>(std::min<size_t>(kMaxEdges, all.size() - next));
    for (int i = 0; i < edges.count; ++i) edges.at[i] = all[next + i] - begin;
    const size_t beyond = next + edges.count;
    const int64_t end = beyond < all.size() ? RoundDown(all[beyond], kPack) : n;
    SHALE_RETURN_IF_ERROR(StartPart(PartOf(op, begin, end), edges, stream));
    begin = end;
  }
  return absl::OkStatus();
}

}  // namespace shale::cuda
