// Loads and stores of f32, bf16 and f16 as fp32 vectors, and loops with a remainder, for all Highway kernels.
//
// A kernel file includes itself, and with it this header, once per instruction set (hwy/foreach_target.h). Loops never
// read or write past the end of a row: the last, partial vector goes through a buffer on the stack.

#if defined(SHALE_KERNELS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SHALE_KERNELS_CPU_SIMD_INL_H_
#undef SHALE_KERNELS_CPU_SIMD_INL_H_
#else
#define SHALE_KERNELS_CPU_SIMD_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/cpu/bfloat16_instructions.h"
#include "kernels/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;
using Bits = hn::RebindToUnsigned<Floats>;
using HalfBits = hn::Rebind<uint16_t, Floats>;

HWY_INLINE Vector Load(const float* from) { return hn::LoadU(Floats(), from); }
HWY_INLINE Vector Load(const BFloat16* from) {
  const auto bits = hn::PromoteTo(Bits(), hn::LoadU(HalfBits(), reinterpret_cast<const uint16_t*>(from)));
  return hn::BitCast(Floats(), hn::ShiftLeft<16>(bits));
}

// Returns the elements as fp32, as ToFloat does. `d` is a tag of fp32 vectors.
template <class D>
HWY_INLINE hn::Vec<D> LoadFloat16s(D d, const Float16* from) {
  const hn::Rebind<uint16_t, D> d16;
  const auto halves = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(from));
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), halves));
#else
  const hn::RebindToSigned<D> i;
  const auto wide = hn::BitCast(i, hn::PromoteTo(hn::RebindToUnsigned<D>(), halves));
  const auto sign = hn::ShiftLeft<16>(hn::And(wide, hn::Set(i, 0x8000)));
  const auto rest = hn::ShiftLeft<13>(hn::And(wide, hn::Set(i, 0x7FFF)));
  // A multiplication changes the bias of the exponent. It is exact, for subnormals too.
  const auto finite = hn::BitCast(i, hn::Mul(hn::BitCast(d, rest), hn::Set(d, 0x1p112f)));
  const auto infinite = hn::Or(rest, hn::Set(i, 0x7F800000));
  const auto nan = hn::Or(infinite, hn::Set(i, 0x400000));
  const auto magnitude = hn::IfThenElse(hn::Gt(rest, hn::Set(i, 0x0F800000)), nan,
                                        hn::IfThenElse(hn::Gt(rest, hn::Set(i, 0x0F7FFFFF)), infinite, finite));
  return hn::BitCast(d, hn::Or(sign, magnitude));
#endif
}
HWY_INLINE Vector Load(const Float16* from) { return LoadFloat16s(Floats(), from); }

// Returns the bits of RoundToFloat16(v).
HWY_INLINE hn::Vec<HalfBits> RoundedFloat16s(Vector v) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  return hn::BitCast(HalfBits(), hn::DemoteTo(hn::Rebind<hwy::float16_t, Floats>(), v));
#else
  const Floats d;
  const hn::RebindToSigned<Floats> i;
  const auto absolute = hn::Abs(v);
  const auto bits = hn::BitCast(i, absolute);
  const auto sign = hn::ShiftRight<16>(hn::BitCast(Bits(), hn::Xor(absolute, v)));
  // The cases are those of RoundToFloat16.
  const auto subnormal = hn::Sub(hn::BitCast(i, hn::Add(absolute, hn::Set(d, 0.5f))), hn::Set(i, 0x3F000000));
  const auto odd = hn::And(hn::ShiftRight<13>(bits), hn::Set(i, 1));
  const auto normal = hn::ShiftRight<13>(hn::Add(hn::Sub(bits, hn::Set(i, (112 << 23) - 0xFFF)), odd));
  const auto nan = hn::Or(hn::And(hn::ShiftRight<13>(bits), hn::Set(i, 0x3FF)), hn::Set(i, 0x7E00));
  auto rest = hn::IfThenElse(hn::Gt(hn::Set(i, 0x38800000), bits), subnormal, normal);
  rest = hn::IfThenElse(hn::Gt(bits, hn::Set(i, 0x477FEFFF)), hn::Set(i, 0x7C00), rest);
  rest = hn::IfThenElse(hn::Gt(bits, hn::Set(i, 0x7F800000)), nan, rest);
  return hn::TruncateTo(HalfBits(), hn::Or(hn::BitCast(Bits(), rest), sign));
#endif
}

HWY_INLINE hn::Vec<HalfBits> UpperHalves(hn::Vec<Bits> bits) {
  return hn::TruncateTo(HalfBits(), hn::ShiftRight<16>(bits));
}

// Returns the bits of RoundToBFloat16(v) in the upper halves; the lower halves are not cleared.
HWY_INLINE hn::Vec<Bits> RoundBits(Vector v) {
  const Bits d;
  const auto bits = hn::BitCast(d, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(d, 0x7fff)), odd);
  const auto quiet = hn::Or(bits, hn::Set(d, 0x400000));
  return hn::IfThenElse(hn::RebindMask(d, hn::IsNaN(v)), quiet, rounded);
}

HWY_INLINE void Store(Vector v, float* to) { hn::StoreU(v, Floats(), to); }
HWY_INLINE void Store(Vector v, BFloat16* to) {
  hn::StoreU(UpperHalves(RoundBits(v)), HalfBits(), reinterpret_cast<uint16_t*>(to));
}

HWY_INLINE void Store(Vector v, Float16* to) {
  hn::StoreU(RoundedFloat16s(v), HalfBits(), reinterpret_cast<uint16_t*>(to));
}

#if HWY_TARGET == HWY_AVX3
inline bool HasBFloat16Instructions() { return MayUseBFloat16Instructions(); }
inline bool HasAmx() { return MayUseAmx(); }

// A bf16 that the processor rounds, in one instruction for two vectors instead of seven for each. It may be used only
// if HasBFloat16Instructions(). Rounds as RoundToBFloat16 does, except that subnormals become zeros of the same sign.
struct HardwareBFloat16 : BFloat16 {};

// StoreRounded and PairsOf round like that. They are assembly because intrinsics need a target attribute, and a
// function that has one is not inlined into kernels that lack it.
HWY_INLINE void StoreRounded(Vector v, BFloat16* to) {
  __m256i halves;
  asm("vcvtneps2bf16 %1, %0" : "=v"(halves) : "v"(v.raw));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves);
}

// Returns in each lane the pair of `even` and `odd`, rounded.
HWY_INLINE Vector PairsOf(Vector even, Vector odd) {
  __m512i halves;
  asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(halves) : "v"(odd.raw), "v"(even.raw));
  const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i order = _mm512_or_si512(lane, _mm512_slli_epi32(_mm512_add_epi32(lane, _mm512_set1_epi32(16)), 16));
  return Vector{_mm512_castsi512_ps(_mm512_permutexvar_epi16(order, halves))};
}

HWY_INLINE void Store(Vector v, HardwareBFloat16* to) { StoreRounded(v, to); }
#else
constexpr bool HasBFloat16Instructions() { return false; }
constexpr bool HasAmx() { return false; }
#endif

// Calls kernel(T()), where T is the type with which a kernel stores activations of `dtype`.
template <class Kernel>
HWY_INLINE void ForActivations(DType dtype, const Kernel& kernel) {
  if (dtype == DType::kFloat32) return kernel(float());
  if (dtype == DType::kFloat16) return kernel(Float16());
#if HWY_TARGET == HWY_AVX3
  if (HasBFloat16Instructions()) return kernel(HardwareBFloat16());
#endif
  kernel(BFloat16());
}

// Full and Partial say how a loop body accesses memory. Full accesses a full vector. Partial accesses only the first
// `n` lanes of one, and reads the other lanes as 0. Keep(v) clears the other lanes of v; Else(v, other) replaces them
// by those of `other`.
struct Full {
  HWY_INLINE Vector Keep(Vector v) const { return v; }
  HWY_INLINE Vector Else(Vector v, Vector) const { return v; }
  template <class T>
  HWY_INLINE Vector Load(const T* from) const {
    return HWY_NAMESPACE::Load(from);
  }
  template <class T>
  HWY_INLINE void Store(Vector v, T* to) const {
    HWY_NAMESPACE::Store(v, to);
  }
  HWY_INLINE hn::Vec<HalfBits> LoadHalves(const uint16_t* from) const { return hn::LoadU(HalfBits(), from); }
  HWY_INLINE void StoreHalves(hn::Vec<HalfBits> v, uint16_t* to) const { hn::StoreU(v, HalfBits(), to); }
  // Stores past the caches, if a vector of halves has the 16 bytes that x86 streams at least. REQUIRES: `to` is aligned
  // to the size of the vector of halves
  HWY_INLINE void StreamHalves(hn::Vec<HalfBits> v, uint16_t* to) const {
    if constexpr (hn::MaxLanes(HalfBits()) >= 8) {
      hn::Stream(v, HalfBits(), to);
    } else {
      StoreHalves(v, to);
    }
  }
};
struct Partial {
  size_t n;
  HWY_INLINE Vector Keep(Vector v) const { return hn::IfThenElseZero(hn::FirstN(Floats(), n), v); }
  HWY_INLINE Vector Else(Vector v, Vector other) const { return hn::IfThenElse(hn::FirstN(Floats(), n), v, other); }
  template <class T>
  HWY_INLINE Vector Load(const T* from) const {
    T lanes[HWY_MAX_BYTES / sizeof(float)] = {};
    std::memcpy(lanes, from, n * sizeof(T));
    return HWY_NAMESPACE::Load(lanes);
  }
  template <class T>
  HWY_INLINE void Store(Vector v, T* to) const {
    T lanes[HWY_MAX_BYTES / sizeof(float)];
    HWY_NAMESPACE::Store(v, lanes);
    std::memcpy(to, lanes, n * sizeof(T));
  }
  HWY_INLINE hn::Vec<HalfBits> LoadHalves(const uint16_t* from) const {
    uint16_t lanes[HWY_MAX_BYTES / sizeof(float)] = {};
    std::memcpy(lanes, from, n * sizeof(uint16_t));
    return hn::LoadU(HalfBits(), lanes);
  }
  HWY_INLINE void StoreHalves(hn::Vec<HalfBits> v, uint16_t* to) const {
    uint16_t lanes[HWY_MAX_BYTES / sizeof(float)];
    hn::StoreU(v, HalfBits(), lanes);
    std::memcpy(to, lanes, n * sizeof(uint16_t));
  }
  HWY_INLINE void StreamHalves(hn::Vec<HalfBits> v, uint16_t* to) const { StoreHalves(v, to); }
};

// Calls body(i, lanes) for [0, count) in steps of a vector, where `lanes` is Full, or Partial for the last step if less
// than a vector remains.
template <class Body>
HWY_INLINE void ForVectors(int64_t count, const Body& body) {
  const int64_t step = static_cast<int64_t>(hn::Lanes(Floats()));
  int64_t i = 0;
  for (; i + step <= count; i += step) body(i, Full());
  if (i < count) body(i, Partial{static_cast<size_t>(count - i)});
}

// Like ForVectors, and passes to body(i, lanes, turn) in which of four turns it is called. A body that sums adds to
// another vector in each turn, so that additions need not wait for one another.
constexpr int kTurns = 4;
template <class Body>
HWY_INLINE void ForVectorsInTurns(int64_t count, const Body& body) {
  const int64_t step = static_cast<int64_t>(hn::Lanes(Floats()));
  int64_t i = 0;
  for (; i + kTurns * step <= count; i += kTurns * step) {
    body(i, Full(), 0);
    body(i + step, Full(), 1);
    body(i + 2 * step, Full(), 2);
    body(i + 3 * step, Full(), 3);
  }
  ForVectors(count - i, [&](int64_t j, auto lanes) HWY_ATTR { body(i + j, lanes, 0); });
}
// What a body sums in its turns.
struct SumInTurns {
  Vector of_turn[kTurns];
};
HWY_INLINE SumInTurns NoSum() {
  const Vector zero = hn::Zero(Floats());
  return {{zero, zero, zero, zero}};
}
HWY_INLINE float TotalOf(const SumInTurns& sum) {
  const Vector* v = sum.of_turn;
  return hn::GetLane(hn::SumOfLanes(Floats(), hn::Add(hn::Add(v[0], v[1]), hn::Add(v[2], v[3]))));
}

// Calls kernel(T()) with the type of elements of `dtype`, for kernels that only read them.
template <class Kernel>
HWY_INLINE void ForElementType(DType dtype, const Kernel& kernel) {
  if (dtype == DType::kFloat32) return kernel(float());
  if (dtype == DType::kFloat16) return kernel(Float16());
  kernel(BFloat16());
}

// Two vectors of adjacent elements. For f32 and f16, `a` is the first half and `b` the second. For bf16, `a` has the
// elements with even indices and `b` those with odd indices, so that loads and stores take half as many instructions.
// Computations on a Pair must not depend on the order of lanes.
struct Pair {
  Vector a, b;
};
HWY_INLINE Pair LoadPair(const float* from) { return {Load(from), Load(from + hn::Lanes(Floats()))}; }
HWY_INLINE Pair LoadPair(const Float16* from) { return {Load(from), Load(from + hn::Lanes(Floats()))}; }
HWY_INLINE Pair LoadPair(const BFloat16* from) {
  const Bits d;
#if HWY_TARGET == HWY_SCALAR
  uint32_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  const auto both = hn::Set(d, bits);
#else
  const hn::Repartition<uint16_t, Bits> halves;
  const auto both = hn::BitCast(d, hn::LoadU(halves, reinterpret_cast<const uint16_t*>(from)));
#endif
  return {hn::BitCast(Floats(), hn::ShiftLeft<16>(both)),
          hn::BitCast(Floats(), hn::And(both, hn::Set(d, 0xffff0000u)))};
}
HWY_INLINE void StorePair(Pair v, float* to) {
  Store(v.a, to);
  Store(v.b, to + hn::Lanes(Floats()));
}
HWY_INLINE void StorePair(Pair v, Float16* to) {
  Store(v.a, to);
  Store(v.b, to + hn::Lanes(Floats()));
}
// Returns the rounded elements: those of `a` in the lower halves, those of `b` in the upper.
HWY_INLINE hn::Vec<Bits> RoundPairBits(Pair v) {
  const auto odd = hn::And(RoundBits(v.b), hn::Set(Bits(), 0xffff0000u));
  return hn::Or(hn::ShiftRight<16>(RoundBits(v.a)), odd);
}
#if HWY_TARGET == HWY_SCALAR
HWY_INLINE void StorePair(Pair v, BFloat16* to) {
  const uint32_t bits = hn::GetLane(RoundPairBits(v));
  std::memcpy(static_cast<void*>(to), &bits, sizeof(bits));
}
#else
// Rounds both vectors at once, in lanes of 16 bits, which takes fewer instructions than RoundPairBits.
HWY_INLINE void StorePair(Pair v, BFloat16* to) {
  const hn::Repartition<uint16_t, Bits> d;
  const auto a = hn::BitCast(Bits(), v.a), b = hn::BitCast(Bits(), v.b);
  const auto upper = hn::OddEven(hn::BitCast(d, b), hn::BitCast(d, hn::ShiftRight<16>(a)));
  const auto lower = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<16>(b)), hn::BitCast(d, a));
  // The carry of lower + 0x7fff + (upper & 1). AverageRound returns (x + y + 1) / 2 without overflow.
  const auto half = hn::Or(hn::And(upper, hn::Set(d, 1)), hn::Set(d, 0x7ffe));
  const auto carry = hn::ShiftRight<15>(hn::AverageRound(lower, half));
  auto rounded = hn::Add(upper, carry);
  // A sum with NaN is NaN; so may be a sum of infinities.
  if (HWY_UNLIKELY(!hn::AllFalse(Floats(), hn::IsNaN(hn::Add(v.a, v.b))))) rounded = hn::BitCast(d, RoundPairBits(v));
  hn::StoreU(rounded, d, reinterpret_cast<uint16_t*>(to));
}
#endif
#if HWY_TARGET == HWY_AVX3
HWY_INLINE void StorePair(Pair v, HardwareBFloat16* to) { Store(PairsOf(v.a, v.b), reinterpret_cast<float*>(to)); }
#endif

// Sets out[i] = f(in[i]...) for i in [0, count). `out` may be one of `in`.
template <class F, class T, class... In>
HWY_INLINE void Map(int64_t count, const F& f, T* out, const In*... in) {
  const int64_t step = 2 * static_cast<int64_t>(hn::Lanes(Floats()));
  int64_t i = 0;
  for (; i + step <= count; i += step) {
    const auto on_pairs = [&](const auto&... pairs) HWY_ATTR { StorePair({f(pairs.a...), f(pairs.b...)}, out + i); };
    on_pairs(LoadPair(in + i)...);
  }
  ForVectors(count - i,
             [&](int64_t j, auto lanes) HWY_ATTR { lanes.Store(f(lanes.Load(in + i + j)...), out + i + j); });
}

// Like Map, for an f that returns a Pair: `a` goes to `first`, `b` to `second`.
template <class F, class T, class... In>
HWY_INLINE void Map2(int64_t count, const F& f, T* first, T* second, const In*... in) {
  const int64_t step = 2 * static_cast<int64_t>(hn::Lanes(Floats()));
  int64_t i = 0;
  for (; i + step <= count; i += step) {
    const auto on_pairs = [&](const auto&... pairs) HWY_ATTR {
      const Pair a = f(pairs.a...), b = f(pairs.b...);
      StorePair({a.a, b.a}, first + i);
      StorePair({a.b, b.b}, second + i);
    };
    on_pairs(LoadPair(in + i)...);
  }
  ForVectors(count - i, [&](int64_t j, auto lanes) HWY_ATTR {
    const Pair results = f(lanes.Load(in + i + j)...);
    lanes.Store(results.a, first + i + j);
    lanes.Store(results.b, second + i + j);
  });
}

// Map3 is like Map, for an f that returns a Triple: `a` goes to `first`, `b` to `second`, `c` to `third`.
struct Triple {
  Vector a, b, c;
};
template <class F, class T, class... In>
HWY_INLINE void Map3(int64_t count, const F& f, T* first, T* second, T* third, const In*... in) {
  const int64_t step = 2 * static_cast<int64_t>(hn::Lanes(Floats()));
  int64_t i = 0;
  for (; i + step <= count; i += step) {
    const auto on_pairs = [&](const auto&... pairs) HWY_ATTR {
      const Triple a = f(pairs.a...), b = f(pairs.b...);
      StorePair({a.a, b.a}, first + i);
      StorePair({a.b, b.b}, second + i);
      StorePair({a.c, b.c}, third + i);
    };
    on_pairs(LoadPair(in + i)...);
  }
  ForVectors(count - i, [&](int64_t j, auto lanes) HWY_ATTR {
    const Triple results = f(lanes.Load(in + i + j)...);
    lanes.Store(results.a, first + i + j);
    lanes.Store(results.b, second + i + j);
    lanes.Store(results.c, third + i + j);
  });
}

// Sums over i in [0, count), where f(sum, in[i]...) returns `sum` with element i added. Returns a vector of partial
// sums; SumOfLanes adds them up. There are four such vectors while it sums, so that additions need not wait for one
// another.
template <class F, class... In>
HWY_INLINE Vector Fold(int64_t count, const F& f, const In*... in) {
  const int64_t step = 2 * static_cast<int64_t>(hn::Lanes(Floats()));
  Vector a = hn::Zero(Floats()), b = a, c = a, d = a;
  const auto to_first = [&](const auto&... pairs) HWY_ATTR {
    a = f(a, pairs.a...);
    b = f(b, pairs.b...);
  };
  const auto to_second = [&](const auto&... pairs) HWY_ATTR {
    c = f(c, pairs.a...);
    d = f(d, pairs.b...);
  };
  int64_t i = 0;
  for (; i + 2 * step <= count; i += 2 * step) {
    to_first(LoadPair(in + i)...);
    to_second(LoadPair(in + i + step)...);
  }
  if (i + step <= count) {
    to_first(LoadPair(in + i)...);
    i += step;
  }
  ForVectors(count - i, [&](int64_t j, auto lanes) HWY_ATTR { a = lanes.Else(f(a, lanes.Load(in + i + j)...), a); });
  return hn::Add(hn::Add(a, b), hn::Add(c, d));
}

HWY_INLINE float SumOfLanes(Vector v) { return hn::GetLane(hn::SumOfLanes(Floats(), v)); }
HWY_INLINE Vector Splat(float x) { return hn::Set(Floats(), x); }

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
