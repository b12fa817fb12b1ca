// Conversions of fp8 vectors to and from fp32, for all Highway kernels. A kernel file includes it once per instruction
// set, like simd-inl.h.

#if defined(SHALE_KERNELS_CPU_FLOAT8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SHALE_KERNELS_CPU_FLOAT8_INL_H_
#undef SHALE_KERNELS_CPU_FLOAT8_INL_H_
#else
#define SHALE_KERNELS_CPU_FLOAT8_INL_H_
#endif

#include <bit>
#include <cstdint>

#include "kernels/cpu/simd-inl.h"
#include "kernels/float8.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

// Returns the elements as fp32, as ToFloat does, apart from the bits of NaNs. `d` is a tag of fp32 vectors.
template <class D, class T>
HWY_INLINE hn::Vec<D> LoadFloat8s(D d, const T* from) {
  const hn::Rebind<uint8_t, D> d8;
  const hn::RebindToSigned<D> i;
  const auto codes = hn::LoadU(d8, reinterpret_cast<const uint8_t*>(from));
  const auto wide = hn::BitCast(i, hn::PromoteTo(hn::RebindToUnsigned<D>(), codes));
  const auto sign = hn::ShiftLeft<24>(hn::And(wide, hn::Set(i, 0x80)));
  const auto rest = hn::And(wide, hn::Set(i, 0x7F));
  // A multiplication changes the bias of the exponent. It is exact, for subnormals too.
  constexpr float kFactor = std::bit_cast<float>((127 + T::kBiasDifference) << 23);
  const auto placed = hn::ShiftLeft<23 - T::kFractionBits>(rest);
  auto magnitude = hn::BitCast(i, hn::Mul(hn::BitCast(d, placed), hn::Set(d, kFactor)));
  if constexpr (T::kDType == DType::kFloat8E5M2) {
    magnitude = hn::IfThenElse(hn::Eq(rest, hn::Set(i, 0x7C)), hn::Set(i, 0x7F800000), magnitude);
  }
  constexpr int32_t kLargestCode = T::kDType == DType::kFloat8E4M3 ? 0x7E : 0x7C;  // That is not a NaN.
  magnitude = hn::IfThenElse(hn::Gt(rest, hn::Set(i, kLargestCode)), hn::Set(i, 0x7FC00000), magnitude);
  return hn::BitCast(d, hn::Or(sign, magnitude));
}

// Stores the bits of SaturateToFloat8<T>(v).
template <class T>
HWY_INLINE void StoreFloat8s(Vector v, T* to) {
  constexpr int kDropped = 23 - T::kFractionBits;
  constexpr int32_t kBias = T::kBiasDifference << 23, kHalf = 1 << (kDropped - 1);
  const Floats d;
  const hn::RebindToSigned<Floats> i;
  const auto absolute = hn::BitCast(i, hn::Abs(v));
  const auto sign = hn::And(hn::ShiftRight<24>(hn::BitCast(Bits(), v)), hn::Set(Bits(), 0x80));
  const auto magnitude = hn::Min(absolute, hn::Set(i, std::bit_cast<int32_t>(T::kLargest)));
  // The cases are those of SaturateToFloat8 and NearestFloat8.
  const auto sum = hn::Add(hn::BitCast(d, magnitude), hn::Set(d, T::kApartAsSubnormals));
  const auto subnormal = hn::Sub(hn::BitCast(i, sum), hn::Set(i, std::bit_cast<int32_t>(T::kApartAsSubnormals)));
  const auto odd = hn::And(hn::ShiftRight<kDropped>(magnitude), hn::Set(i, 1));
  const auto normal = hn::ShiftRight<kDropped>(hn::Add(hn::Sub(magnitude, hn::Set(i, kBias - kHalf + 1)), odd));
  auto rest = hn::IfThenElse(hn::Gt(hn::Set(i, kBias + (1 << 23)), magnitude), subnormal, normal);
  rest = hn::IfThenElse(hn::Gt(absolute, hn::Set(i, 0x7F800000)), hn::Set(i, 0x7F), rest);
  const hn::Rebind<uint8_t, Floats> d8;
  hn::StoreU(hn::TruncateTo(d8, hn::Or(hn::BitCast(Bits(), rest), sign)), d8, reinterpret_cast<uint8_t*>(to));
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
