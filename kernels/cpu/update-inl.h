// Structs for the ways to store master weights and states, and the loops over a part of a shard, for the Highway
// kernels of update rules.

#if defined(SHALE_KERNELS_CPU_UPDATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SHALE_KERNELS_CPU_UPDATE_INL_H_
#undef SHALE_KERNELS_CPU_UPDATE_INL_H_
#else
#define SHALE_KERNELS_CPU_UPDATE_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/random-inl.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/cpu/update.h"
#include "kernels/ops/update.h"

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

// Returns the bits of a master that is rounded to a weight of T.
HWY_INLINE hn::Vec<HalfBits> WeightBits(const BFloat16*, Vector p) { return UpperHalves(RoundedMasterBits(p)); }
HWY_INLINE hn::Vec<HalfBits> WeightBits(const Float16*, Vector p) { return RoundedFloat16s(p); }

// fp32 master, bf16 or f16 weight. If kStreams, full vectors of weights bypass the caches and must be aligned. The
// caches would not help: nothing reads a weight before the whole group is written, and they do not hold a group.
template <class T, bool kStreams>
struct FloatMaster {
  float* master;
  T* weight;
  explicit FloatMaster(const Update& op) : master(op.master_P.as<float>()), weight(op.weight_P.as<T>()) {}
  template <class Lanes>
  HWY_INLINE Vector Load(Lanes lanes, int64_t i) const {
    return lanes.Load(master + i);
  }
  template <class Lanes>
  HWY_INLINE void Store(Lanes lanes, Vector p, int64_t i) const {
    lanes.Store(p, master + i);
    const auto halves = WeightBits(weight, p);
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

// bf16 weight alone. `random` has the random bits of element `first` and the following ones.
struct RoundedWeight {
  BFloat16* weight;
  const uint16_t* random;
  int64_t first;
  template <class Lanes>
  HWY_INLINE Vector Load(Lanes lanes, int64_t i) const {
    return lanes.Load(weight + i);
  }
  template <class Lanes>
  HWY_INLINE void Store(Lanes lanes, Vector p, int64_t i) const {
    StoreStochastically(lanes, p, random + (i - first), weight + i);
  }
};

// The following structs are the ways to store states that have one element for each weight. Each loads and stores
// element i of state s.
struct FloatStates {
  float* at[kMaxUpdateStates];
  int64_t first = 0;  // The element that `at` points to.
  template <class Lanes>
  HWY_INLINE Vector Load(Lanes lanes, int s, int64_t i) const {
    return lanes.Load(at[s] + (i - first));
  }
  template <class Lanes>
  HWY_INLINE void Store(Lanes lanes, Vector v, int s, int64_t i) const {
    lanes.Store(v, at[s] + (i - first));
  }
};

// `random` has the random bits of element `first` and the following ones, for each state.
struct RoundedStates {
  BFloat16* at[kMaxUpdateStates];
  const uint16_t* random[kMaxUpdateStates];
  int64_t first;
  template <class Lanes>
  HWY_INLINE Vector Load(Lanes lanes, int s, int64_t i) const {
    return lanes.Load(at[s] + i);
  }
  template <class Lanes>
  HWY_INLINE void Store(Lanes lanes, Vector v, int s, int64_t i) const {
    StoreStochastically(lanes, v, random[s] + (i - first), at[s] + i);
  }
};

HWY_INLINE FloatStates FloatStatesOf(const Update& op) {
  FloatStates states = {};
  for (size_t s = 0; s < StatesOf(op.rule).size(); ++s) states.at[s] = op.states[s].as<float>();
  return states;
}

// The random bits with which an update rounds a chunk of elements.
template <int kStates>
class RandomChunk {
 public:
  explicit RandomChunk(const Update& op) : op_(op) {
    stream_ = {.seed = op.seed, .number = *op.number_1.as<const int64_t>(), .group = op.group};
  }

  // Moves to the elements [begin, begin + count) of the shard. REQUIRES: as for StoreRandomBits
  HWY_INLINE void MoveTo(int64_t begin, int64_t count) {
    first_ = begin;
    if (op_.is_own_master()) Fill(kWeightStream, count, weights_);
    if (!HasBFloat16States(op_.rule)) return;
    for (int s = 0; s < kStates; ++s) Fill(StateStream(s), count, states_[s]);
  }

  RoundedWeight Weight() const { return {op_.weight_P.as<BFloat16>(), weights_, first_}; }
  RoundedStates States() const {
    RoundedStates states = {.first = first_};
    for (int s = 0; s < kStates; ++s) {
      states.at[s] = op_.states[s].as<BFloat16>();
      states.random[s] = states_[s];
    }
    return states;
  }

 private:
  HWY_INLINE void Fill(uint32_t tensor, int64_t count, uint16_t* to) {
    stream_.tensor = tensor;
    StoreRandomBits(stream_, op_.shard_begin + first_, count, to);
  }

  const Update& op_;
  RoundingStream stream_;
  int64_t first_ = 0;
  HWY_ALIGN uint16_t weights_[kRandomChunk];
  HWY_ALIGN uint16_t states_[kStates > 0 ? kStates : 1][kRandomChunk];
};

// Calls run(master, begin, end, decays) for the runs of elements in [begin, end) that all have weight decay or all have
// none, where `master` is the struct that stores their masters. Only a bf16 weight alone needs `rounded`.
template <class Run>
HWY_INLINE void ForRuns(const Update& op, const RoundedWeight& rounded, int64_t begin, int64_t end, const Run& run) {
  while (begin < end) {
    const DecayRun next = DecayRunAt(op, begin, end);
    if (op.low_P.present()) {
      run(SplitMaster(op), begin, next.end, next.decays);
    } else if (!op.master_P.present() && op.weight_P.dtype == DType::kBFloat16) {
      run(rounded, begin, next.end, next.decays);
    } else if (!op.master_P.present()) {
      run(WeightItself(op), begin, next.end, next.decays);
    } else if (op.weight_P.dtype == DType::kFloat32) {
      run(WideMaster(op), begin, next.end, next.decays);
    } else {
      const bool streams =
          reinterpret_cast<uintptr_t>(op.weight_P.as<uint16_t>() + begin) % (hn::Lanes(HalfBits()) * 2) == 0;
      if (op.weight_P.dtype == DType::kFloat16) {
        streams ? run(FloatMaster<Float16, true>(op), begin, next.end, next.decays)
                : run(FloatMaster<Float16, false>(op), begin, next.end, next.decays);
      } else {
        streams ? run(FloatMaster<BFloat16, true>(op), begin, next.end, next.decays)
                : run(FloatMaster<BFloat16, false>(op), begin, next.end, next.decays);
      }
    }
    begin = next.end;
  }
}

// Calls run(master, states, begin, end, decays) for runs of elements as ForRuns does, where `states` is the struct that
// stores their states, of which the rule has kStates with one element for each weight. `begin` is a multiple of
// kRandomBlock.
template <int kStates, class Run>
HWY_INLINE void ForElements(const Update& op, int64_t begin, int64_t end, const Run& run) {
  if (!op.number_1.present()) {
    const FloatStates states = FloatStatesOf(op);
    return ForRuns(op, {}, begin, end, [&](const auto& master, int64_t from, int64_t to, bool decays) HWY_ATTR {
      run(master, states, from, to, decays);
    });
  }
  RandomChunk<kStates> random(op);
  for (int64_t at = begin; at < end; at += kRandomChunk) {
    const int64_t chunk_end = std::min(end, at + kRandomChunk);
    random.MoveTo(at, chunk_end - at);
    const auto for_runs = [&](const auto& states) HWY_ATTR {
      ForRuns(op, random.Weight(), at, chunk_end,
              [&](const auto& master, int64_t from, int64_t to, bool decays)
                  HWY_ATTR { run(master, states, from, to, decays); });
    };
    if (HasBFloat16States(op.rule)) {
      for_runs(random.States());
    } else {
      for_runs(FloatStatesOf(op));
    }
  }
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
