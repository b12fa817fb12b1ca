// Structs for the ways to store master weights, and the loop over a part of a shard, for the Highway kernels of update
// rules.

#if defined(SHALE_KERNELS_CPU_UPDATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SHALE_KERNELS_CPU_UPDATE_INL_H_
#undef SHALE_KERNELS_CPU_UPDATE_INL_H_
#else
#define SHALE_KERNELS_CPU_UPDATE_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/cpu/update.h"
#include "kernels/ops.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

// The following structs are the ways to store master weights. Each loads and stores the master p of element i.
struct WeightItself {  // The fp32 weight is the master.
  float* weight;
  explicit WeightItself(const Update& op) : weight(op.weight_P.as<float>()) {}
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
  explicit WideMaster(const Update& op) : master(op.master_P.as<float>()), weight(op.weight_P.as<float>()) {}
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

// fp32 master, bf16 weight. If kStreams, full vectors of weights bypass the caches and must be aligned. The caches
// would not help: nothing reads a weight before the whole group is written, and they do not hold a group.
template <bool kStreams>
struct FloatMaster {
  float* master;
  BFloat16* weight;
  explicit FloatMaster(const Update& op) : master(op.master_P.as<float>()), weight(op.weight_P.as<BFloat16>()) {}
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
  explicit SplitMaster(const Update& op) : weight(op.weight_P.as<BFloat16>()), low(op.low_P.as<int16_t>()) {}
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

// Calls run(master, begin, end, decays) for the runs of elements in [begin, end) that all have weight decay or all have
// none, where `master` is the struct that stores their masters.
template <class Run>
HWY_INLINE void ForRuns(const Update& op, int64_t begin, int64_t end, const Run& run) {
  while (begin < end) {
    const DecayRun next = DecayRunAt(op, begin, end);
    if (op.low_P.present()) {
      run(SplitMaster(op), begin, next.end, next.decays);
    } else if (!op.master_P.present()) {
      run(WeightItself(op), begin, next.end, next.decays);
    } else if (op.weight_P.dtype == DType::kFloat32) {
      run(WideMaster(op), begin, next.end, next.decays);
    } else if (reinterpret_cast<uintptr_t>(op.weight_P.as<BFloat16>() + begin) %
                   (hn::Lanes(HalfBits()) * sizeof(BFloat16)) ==
               0) {
      run(FloatMaster<true>(op), begin, next.end, next.decays);
    } else {
      run(FloatMaster<false>(op), begin, next.end, next.decays);
    }
    begin = next.end;
  }
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
