// The dequantization of weights in 4 bits.
//
// A block of 64 weights has 16 possible values, which are computed once, as two vectors of 8 fp32 numbers, and rounded
// to bf16 there if that is what is stored. A weight is then a look-up in the two. Weights of f16 are looked up one by
// one.
#include <array>
#include <cstring>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/nf4.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/dtype.h"
#include "kernels/nf4.h"
#include "kernels/ops/quantized.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
using Eight = hn::CappedTag<float, 8>;
using EightBits = hn::RebindToUnsigned<Eight>;

// Returns v, or the bf16 nearest to each lane.
HWY_INLINE hn::Vec<Eight> RoundedFor(const float*, hn::Vec<Eight> v) { return v; }
HWY_INLINE hn::Vec<Eight> RoundedFor(const BFloat16*, hn::Vec<Eight> v) {
  const EightBits d;
  const auto bits = hn::BitCast(d, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(d, 0x7fff)), odd);
  const auto quiet = hn::Or(bits, hn::Set(d, 0x400000));
  const auto chosen = hn::IfThenElse(hn::RebindMask(d, hn::IsNaN(v)), quiet, rounded);
  return hn::BitCast(Eight(), hn::And(chosen, hn::Set(d, 0xffff0000)));
}
HWY_INLINE void StoreEight(hn::Vec<Eight> v, float* to) { hn::StoreU(v, Eight(), to); }
HWY_INLINE void StoreEight(hn::Vec<Eight> v, BFloat16* to) {
  const hn::Rebind<uint16_t, Eight> halves;
  hn::StoreU(hn::TruncateTo(halves, hn::ShiftRight<16>(hn::BitCast(EightBits(), v))), halves,
             reinterpret_cast<uint16_t*>(to));
}
#endif

template <class T>
void BlockT(const uint8_t* codes, float absmax, T* out) {
  HWY_ALIGN float values[kNf4Codes];
  for (int code = 0; code < kNf4Codes; ++code) values[code] = Nf4Value(code);
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  if constexpr (hn::MaxLanes(Eight()) == 8 && !std::is_same_v<T, Float16>) {
    const Eight d;
    const EightBits bits;
    const auto factor = hn::Set(d, absmax);
    const auto low = RoundedFor(out, hn::Mul(hn::Load(d, values), factor));
    const auto high = RoundedFor(out, hn::Mul(hn::Load(d, values + 8), factor));
    // Lane k finds its code in bits 4 to 7 of byte k/2 if k is even, else in bits 0 to 3.
    HWY_ALIGN static constexpr uint32_t kShifts[8] = {4, 0, 12, 8, 20, 16, 28, 24};
    const auto shifts = hn::Load(bits, kShifts);
    const auto seven = hn::Set(bits, 7), eight = hn::Set(bits, 8);
    for (int64_t i = 0; i < kNf4BlockWeights; i += 8) {
      uint32_t word;
      std::memcpy(&word, codes + i / 2, sizeof(word));
      const auto lanes = hn::Shr(hn::Set(bits, word), shifts);
      const auto indices = hn::IndicesFromVec(d, hn::And(lanes, seven));
      const auto in_high = hn::RebindMask(d, hn::Ne(hn::And(lanes, eight), hn::Zero(bits)));
      StoreEight(hn::IfThenElse(in_high, hn::TableLookupLanes(high, indices), hn::TableLookupLanes(low, indices)),
                 out + i);
    }
    return;
  }
#endif
  std::array<T, kNf4Codes> rounded;
  for (int code = 0; code < kNf4Codes; ++code) rounded[code] = RoundTo<T>(values[code] * absmax);
  for (int64_t i = 0; i < kNf4BlockWeights; i += 2) {
    out[i] = rounded[codes[i / 2] >> 4];
    out[i + 1] = rounded[codes[i / 2] & 15];
  }
}

// Dequantizes `blocks` blocks to elements of `out` from `first` on.
void Blocks(const uint8_t* codes, const float* absmax, int64_t blocks, const Tensor& out, int64_t first) {
  ForElementType(out.dtype, [&](auto element) HWY_ATTR {
    auto* const to = out.as<decltype(element)>() + first;
    for (int64_t b = 0; b < blocks; ++b) {
      BlockT(codes + b * kNf4BlockWeights / 2, absmax[b], to + b * kNf4BlockWeights);
    }
  });
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shale::cpu {

HWY_EXPORT(Blocks);

absl::Status Run(const Nf4Dequantize& op, Scratch scratch, const Context& context) {
  const Nf4Row row{op.out_RN.dim(1)};
  ParallelFor(*context.team, op.out_RN.dim(0) * row.groups(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t r = at / row.groups(), g = at % row.groups();
      const auto* bytes = op.stored_RP.as<const uint8_t>() + r * row.bytes();
      const float scale = reinterpret_cast<const float*>(bytes + row.scales_begin())[g];
      const float mean = reinterpret_cast<const float*>(bytes + row.means_begin())[g];
      float absmax[kNf4GroupBlocks];
      DequantizeAbsmax(bytes + row.absmax_begin() + g * kNf4GroupBlocks, scale, mean, absl::MakeSpan(absmax));
      const uint8_t* codes = bytes + g * kNf4GroupWeights / 2;
      const int64_t first = r * row.weights + g * kNf4GroupWeights;
      HWY_DYNAMIC_DISPATCH(Blocks)(codes, absmax, kNf4GroupBlocks, op.out_RN, first);
    }
  });
  return absl::OkStatus();
}

}  // namespace shale::cpu
#endif
