// Random bits for stochastic rounding, and vectors rounded by them.

#if defined(SHALE_KERNELS_CPU_RANDOM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SHALE_KERNELS_CPU_RANDOM_INL_H_
#undef SHALE_KERNELS_CPU_RANDOM_INL_H_
#else
#define SHALE_KERNELS_CPU_RANDOM_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/counter_random.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR
// A word of Philox counters, one for each lane, in the lower halves of the lanes. The upper halves hold any bits:
// MulEven ignores them.
using WideBits = hn::ScalableTag<uint64_t>;
using Word = hn::Vec<WideBits>;

HWY_INLINE Word Product(uint32_t factor, Word word) {
  const hn::Repartition<uint32_t, WideBits> d;
  return hn::MulEven(hn::Set(d, factor), hn::BitCast(d, word));
}

// Stores the bits of as many blocks as a Word has lanes, from block `first` on.
HWY_INLINE void StoreRandomBlocks(const RoundingStream& stream, int64_t first, uint16_t* to) {
  const WideBits d;
  const RandomBlock origin = stream.Origin();
  const Word block = hn::Iota(d, static_cast<uint64_t>(first));
  Word c0 = block, c1 = hn::Or(hn::ShiftRight<32>(block), hn::Set(d, origin.word[1]));
  Word c2 = hn::Set(d, origin.word[2]), c3 = hn::Set(d, origin.word[3]);
  uint32_t key0 = static_cast<uint32_t>(stream.Key()), key1 = static_cast<uint32_t>(stream.Key() >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const Word product0 = Product(kPhiloxFactor0, c0), product1 = Product(kPhiloxFactor1, c2);
    c0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(product1), c1), hn::Set(d, key0));
    c1 = product1;
    c2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(product0), c3), hn::Set(d, key1));
    c3 = product0;
    key0 += kPhiloxKeyStep0;
    key1 += kPhiloxKeyStep1;
  }
  const Word lower = hn::Set(d, 0xffffffffu);
  hn::StoreInterleaved2(hn::Or(hn::And(c0, lower), hn::ShiftLeft<32>(c1)),
                        hn::Or(hn::And(c2, lower), hn::ShiftLeft<32>(c3)), d, reinterpret_cast<uint64_t*>(to));
}
#endif

// Stores the 16 random bits of each of the elements [begin, begin + count) of a group. `to` has room for the bits of
// kRandomChunk elements. REQUIRES: begin is a multiple of kRandomBlock, and count <= kRandomChunk
inline constexpr int64_t kRandomChunk = 256;
HWY_INLINE void StoreRandomBits(const RoundingStream& stream, int64_t begin, int64_t count, uint16_t* to) {
  const int64_t first = begin / kRandomBlock;
#if HWY_TARGET == HWY_SCALAR
  for (int64_t i = 0; i < count; i += kRandomBlock) {
    const RandomBlock block = stream.At(first + i / kRandomBlock);
    for (int64_t k = 0; k < kRandomBlock; ++k) to[i + k] = static_cast<uint16_t>(block.Half(k));
  }
#else
  const int64_t blocks = static_cast<int64_t>(hn::Lanes(WideBits()));
  static_assert(kRandomChunk % (kRandomBlock * hn::MaxLanes(WideBits())) == 0);
  for (int64_t i = 0; i < count; i += blocks * kRandomBlock) {
    StoreRandomBlocks(stream, first + i / kRandomBlock, to + i);
  }
#endif
}

// Stores a vector rounded by RoundStochastically with the random bits at `random`.
template <class Lanes>
HWY_INLINE void StoreStochastically(Lanes lanes, Vector v, const uint16_t* random, BFloat16* to) {
  const Bits d;
  const auto bits = hn::BitCast(d, v);
  const auto rounded = hn::Add(bits, hn::PromoteTo(d, lanes.LoadHalves(random)));
  const auto quiet = hn::Or(bits, hn::Set(d, 0x400000));
  const auto either = hn::IfThenElse(hn::RebindMask(d, hn::IsNaN(v)), quiet, rounded);
  lanes.StoreHalves(UpperHalves(either), reinterpret_cast<uint16_t*>(to));
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
