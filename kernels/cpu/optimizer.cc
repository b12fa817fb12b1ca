// AdamW in one pass over memory, which bounds it: it moves 28 bytes per parameter (fp32).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/optimizer.cc"
#include <algorithm>
#include <cmath>

#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/reference/scalar_ops.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

// The following structs are the ways to store master weights. Each loads and stores the master p of element i.
struct WeightItself {  // The fp32 weight is the master.
  float* weight;
  explicit WeightItself(const AdamW& op) : weight(op.weight_P.as<float>()) {}
  template <class Lanes>
  HWY_INLINE Vector Load(Lanes lanes, int64_t i) const {
    return lanes.Load(weight + i);
  }
  template <class Lanes>
  HWY_INLINE void Store(Lanes lanes, Vector p, int64_t i) const {
    lanes.Store(p, weight + i);
  }
};

struct WideMaster {  // fp32 master, fp32 weight.
  float *master, *weight;
  explicit WideMaster(const AdamW& op) : master(op.master_P.as<float>()), weight(op.weight_P.as<float>()) {}
  template <class Lanes>
  HWY_INLINE Vector Load(Lanes lanes, int64_t i) const {
    return lanes.Load(master + i);
  }
  template <class Lanes>
  HWY_INLINE void Store(Lanes lanes, Vector p, int64_t i) const {
    lanes.Store(p, master + i);
    lanes.Store(p, weight + i);
  }
};

// Returns the bits of RoundMaster(p) in the upper halves, and zeros in the lower halves.
HWY_INLINE hn::Vec<Bits> RoundedMasterBits(Vector p) {
  const Bits d;
  const auto bits = hn::BitCast(d, p);
  const auto rounded = hn::Add(bits, hn::Set(d, 0x8000));
  const auto quiet = hn::Or(bits, hn::Set(d, 0x400000));
  return hn::And(hn::IfThenElse(hn::RebindMask(d, hn::IsNaN(p)), quiet, rounded), hn::Set(d, 0xffff0000u));
}

// fp32 master, bf16 weight. If kStreams, full vectors of weights bypass the caches and must be aligned: nothing reads
// the weights before all those of their group are written, and the caches would not hold that many.
template <bool kStreams>
struct FloatMaster {
  float* master;
  BFloat16* weight;
  explicit FloatMaster(const AdamW& op) : master(op.master_P.as<float>()), weight(op.weight_P.as<BFloat16>()) {}
  template <class Lanes>
  HWY_INLINE Vector Load(Lanes lanes, int64_t i) const {
    return lanes.Load(master + i);
  }
  template <class Lanes>
  HWY_INLINE void Store(Lanes lanes, Vector p, int64_t i) const {
    lanes.Store(p, master + i);
    const auto halves = UpperHalves(RoundedMasterBits(p));
    uint16_t* const to = reinterpret_cast<uint16_t*>(weight) + i;
    kStreams ? lanes.StreamHalves(halves, to) : lanes.StoreHalves(halves, to);
  }
};

struct SplitMaster {  // bf16 weight and 16 low bits.
  BFloat16* weight;
  int16_t* low;
  explicit SplitMaster(const AdamW& op) : weight(op.weight_P.as<BFloat16>()), low(op.low_P.as<int16_t>()) {}
  template <class Lanes>
  HWY_INLINE Vector Load(Lanes lanes, int64_t i) const {
    const hn::RebindToSigned<Floats> d;
    const hn::Rebind<int16_t, Floats> d16;
    const auto upper = hn::BitCast(d, lanes.Load(weight + i));
    const auto lower = hn::BitCast(d16, lanes.LoadHalves(reinterpret_cast<const uint16_t*>(low) + i));
    return hn::BitCast(Floats(), hn::Add(upper, hn::PromoteTo(d, lower)));
  }
  template <class Lanes>
  HWY_INLINE void Store(Lanes lanes, Vector p, int64_t i) const {
    const Bits d;
    const auto rounded = RoundedMasterBits(p);
    lanes.StoreHalves(UpperHalves(rounded), reinterpret_cast<uint16_t*>(weight) + i);
    // The difference fits in a signed 16-bit integer, so its lower half, shifted up for UpperHalves, is all of it. NaN
    // stores 0.
    const auto difference = hn::Sub(hn::BitCast(d, p), rounded);
    const auto bits = hn::IfThenZeroElse(hn::RebindMask(d, hn::IsNaN(p)), hn::ShiftLeft<16>(difference));
    lanes.StoreHalves(UpperHalves(bits), reinterpret_cast<uint16_t*>(low) + i);
  }
};

// Updates elements [begin, end), which all have weight decay `decay` (0: none).
template <class Master>
void AdamWRun(const AdamW& op, int64_t begin, int64_t end, float decay) {
  const Master master(op);
  const float* update = op.update_5.as<const float>();
  const float* gradient = op.gradient_P.as<const float>();
  float* ms = op.m_P.as<float>();
  float* vs = op.v_P.as<float>();
  const Vector factor = Splat(update[kUpdateGradientFactor]);
  const Vector shrink = Splat(update[kUpdateLearningRate] * decay);
  const Vector step = Splat(update[kUpdateLearningRate] / update[kUpdateCorrection1]);
  const Vector root_correction = Splat(std::sqrt(update[kUpdateCorrection2]));
  const Vector rest1 = Splat(1 - op.beta1), beta2 = Splat(op.beta2), rest2 = Splat(1 - op.beta2);
  const Vector epsilon = Splat(op.epsilon);
  ForVectors(end - begin, [&](int64_t offset, auto lanes) HWY_ATTR {
    const int64_t i = begin + offset;
    const Vector g = hn::Mul(lanes.Load(gradient + i), factor);
    Vector p = master.Load(lanes, i);
    p = hn::NegMulAdd(shrink, p, p);
    Vector m = lanes.Load(ms + i);
    m = hn::MulAdd(rest1, hn::Sub(g, m), m);
    const Vector v = hn::MulAdd(hn::Mul(rest2, g), g, hn::Mul(beta2, lanes.Load(vs + i)));
    lanes.Store(m, ms + i);
    lanes.Store(v, vs + i);
    const Vector denominator = hn::Add(hn::Div(hn::Sqrt(v), root_correction), epsilon);
    master.Store(lanes, hn::Sub(p, hn::Div(hn::Mul(step, m), denominator)), i);
  });
}

void AdamWElements(const AdamW& op, int64_t begin, int64_t end, float decay) {
  if (op.low_P.present()) return AdamWRun<SplitMaster>(op, begin, end, decay);
  if (!op.master_P.present()) return AdamWRun<WeightItself>(op, begin, end, decay);
  if (op.weight_P.dtype == DType::kFloat32) return AdamWRun<WideMaster>(op, begin, end, decay);
  const auto address = reinterpret_cast<uintptr_t>(op.weight_P.as<BFloat16>() + begin);
  if (address % (hn::Lanes(HalfBits()) * sizeof(BFloat16)) != 0) {
    return AdamWRun<FloatMaster<false>>(op, begin, end, decay);
  }
  AdamWRun<FloatMaster<true>>(op, begin, end, decay);
  hwy::FlushStream();
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shale::cpu {
namespace {

HWY_EXPORT(AdamWElements);

// Updates elements [begin, end) of the shard, split where weight decay begins or ends.
void AdamWBlock(const AdamW& op, int64_t begin, int64_t end) {
  const ElementRange* range = nullptr;
  const ElementRange* last = nullptr;
  if (op.decayed != nullptr) {
    last = op.decayed->data() + op.decayed->size();
    // The first range that ends after `begin`.
    range = std::upper_bound(op.decayed->data(), last, op.shard_begin + begin,
                             [](int64_t at, const ElementRange& r) { return at < r.end; });
  }
  while (begin < end) {
    while (range != last && range->end - op.shard_begin <= begin) ++range;
    const int64_t from = range == last ? end : range->begin - op.shard_begin;
    const bool inside = from <= begin;
    const int64_t stop = std::min(end, inside ? range->end - op.shard_begin : from);
    HWY_DYNAMIC_DISPATCH(AdamWElements)(op, begin, stop, inside ? op.weight_decay : 0.0f);
    begin = stop;
  }
}

}  // namespace

absl::Status Run(const AdamW& op, Scratch scratch, const Context& context) {
  if (op.update_5.as<const float>()[kUpdateSkip] != 0) return absl::OkStatus();
  ParallelFor(context.threads, op.weight_P.dim(0), kElementsPerBlock,
              [&](int64_t begin, int64_t end) { AdamWBlock(op, begin, end); });
  return absl::OkStatus();
}

absl::Status Run(const LossScale& op, Scratch scratch, const Context& context) { return RunOnHost(op); }

absl::Status Run(const FlagNonFinite& op, Scratch scratch, const Context& context) { return RunOnHost(op); }

absl::Status Run(const PrepareUpdate& op, Scratch scratch, const Context& context) { return RunOnHost(op); }

}  // namespace shale::cpu
#endif
