// AdamW with 8-bit states. The kernel makes one pass over memory and moves 16 bytes per parameter (fp32). A thread
// widens a block of m and v on its stack, updates the block as AdamW does, and stores it as codes again. The kernel is
// bound by arithmetic, of which half is four lookups in tables. It takes about five times as long as AdamW (measured on
// a Zen 4), so it saves memory, not time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/update_adamw_8bit.cc"
#include <algorithm>
#include <cstring>

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/adamw-inl.h"
#include "kernels/cpu/level_tables.h"
#include "kernels/cpu/update-inl.h"
#include "kernels/cpu/update.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

using Ints = hn::RebindToSigned<Floats>;
using Bytes = hn::Rebind<uint8_t, Floats>;

// The loops below go over whole blocks, even if the last block of a shard is short: its other elements are zeros.
static_assert(kQuantizedBlock % (HWY_MAX_BYTES / sizeof(float)) == 0);
static_assert(kQuantizedBlock <= kRandomChunk);

// Sets values = Map[codes] * scale.
template <class Map>
HWY_INLINE void Widen(const uint8_t* codes, float scale, int64_t count, float* values) {
  uint8_t block[kQuantizedBlock] = {};
  std::memcpy(block, codes, static_cast<size_t>(count));
  const Vector factor = Splat(scale);
  for (int64_t k = 0; k < kQuantizedBlock; k += static_cast<int64_t>(hn::Lanes(Floats()))) {
    const auto code = hn::PromoteTo(Ints(), hn::LoadU(Bytes(), block + k));
    Store(hn::Mul(hn::GatherIndex(Floats(), kCodeValues<Map>.at, code), factor), values + k);
  }
  std::fill(values + count, values + kQuantizedBlock, 0.0f);
}

// Returns the levels to which `x`, from [0, 1], is rounded; level 0 for a NaN.
template <class Map>
HWY_INLINE hn::Vec<Ints> RoundedLevels(Vector x) {
  using Table = LevelTable<Map>;
  const Ints d;
  const auto bits = hn::BitCast(d, x);
  const auto key = hn::Min(hn::Max(hn::ShiftRight<16>(bits), hn::Set(d, Table::kFirstKey)), hn::Set(d, Table::kNaNKey));
  const auto entry = hn::GatherIndex(d, kLevelTable<Map>.entries, hn::Sub(key, hn::Set(d, Table::kFirstKey)));
  const auto nearest = hn::ShiftRight<16>(hn::Add(entry, hn::And(bits, hn::Set(d, 0xffff))));
  const auto positive = hn::RebindMask(d, hn::Gt(x, Splat(0)));
  return hn::Max(nearest, hn::IfThenElseZero(positive, hn::Set(d, Map::kLowestOfPositive)));
}

HWY_INLINE hn::Vec<Ints> CodesOf(SignedMap, hn::Vec<Ints> level, Vector value) {
  const Ints d;
  const auto zero = hn::Set(d, SignedMap::kZeroCode);
  const auto below = hn::Sub(zero, hn::Min(hn::Max(level, hn::Set(d, 1)), zero));
  return hn::IfThenElse(hn::RebindMask(d, hn::Lt(value, Splat(0))), below, hn::Add(zero, level));
}
HWY_INLINE hn::Vec<Ints> CodesOf(UnsignedMap, hn::Vec<Ints> level, Vector) { return level; }

// Stores `count` values of a block as codes, and returns their scale.
template <class Map>
HWY_INLINE float Quantize(const float* values, int64_t count, uint8_t* codes) {
  const Ints d;
  const int64_t step = static_cast<int64_t>(hn::Lanes(Floats()));
  // The values are compared as integers, so that a NaN is larger than any number.
  auto largest = hn::Zero(d);
  for (int64_t k = 0; k < kQuantizedBlock; k += step) {
    largest = hn::Max(largest, hn::BitCast(d, hn::Abs(Load(values + k))));
  }
  const float scale = hn::GetLane(hn::BitCast(Floats(), hn::MaxOfLanes(d, largest)));
  uint8_t block[kQuantizedBlock];
  const Vector divisor = Splat(scale);
  for (int64_t k = 0; k < kQuantizedBlock; k += step) {
    const Vector value = Load(values + k);
    // If the scale is 0, the ratio is NaN, which gives level 0.
    const auto level = RoundedLevels<Map>(hn::Abs(hn::Div(value, divisor)));
    hn::StoreU(hn::DemoteTo(Bytes(), CodesOf(Map(), level, value)), Bytes(), block + k);
  }
  std::memcpy(codes, block, static_cast<size_t>(count));
  return scale;
}

void AdamW8BitElements(const AdamW8BitRule& rule, const Update& op, int64_t begin, int64_t end) {
  uint8_t *m_codes = op.states[0].as<uint8_t>(), *v_codes = op.states[1].as<uint8_t>();
  float *m_scales = op.states[2].as<float>(), *v_scales = op.states[3].as<float>();
  for (int64_t at = begin; at < end; at += kQuantizedBlock) {
    const int64_t block = at / kQuantizedBlock, count = std::min(kQuantizedBlock, end - at);
    float ms[kQuantizedBlock], vs[kQuantizedBlock];
    Widen<SignedMap>(m_codes + at, m_scales[block], count, ms);
    Widen<UnsignedMap>(v_codes + at, v_scales[block], count, vs);
    const FloatStates states = {.at = {ms, vs}, .first = at};
    const auto run = [&](const auto& master, int64_t from, int64_t to, bool decays)
                         HWY_ATTR { AdamWRun(rule, op, master, states, from, to, decays); };
    if (op.number_1.present()) {
      RandomChunk<0> random(op);
      random.MoveTo(at, count);
      ForRuns(op, random.Weight(), at, at + count, run);
    } else {
      ForRuns(op, {}, at, at + count, run);
    }
    m_scales[block] = Quantize<SignedMap>(ms, count, m_codes + at);
    v_scales[block] = Quantize<UnsignedMap>(vs, count, v_codes + at);
  }
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shale::cpu {
namespace {

HWY_EXPORT(AdamW8BitElements);

}  // namespace

void UpdateElements(const AdamW8BitRule& rule, const Update& op, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(AdamW8BitElements)(rule, op, begin, end);
}

}  // namespace shale::cpu
#endif
