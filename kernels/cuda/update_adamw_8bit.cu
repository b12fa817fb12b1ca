// AdamW with 8-bit states.
//
// The kernel makes one pass and is bound by memory. It moves 16 bytes per parameter with split masters or an fp32
// weight alone, 18 with an fp32 master and a bf16 weight, and 20 with an fp32 master and an fp32 weight. A warp owns a
// block of 256 elements of the states, and each lane eight adjacent ones, in packs of up to 16 bytes. Operands that do
// not begin at 16-byte addresses, and the last elements of the shard, go element by element. The warp widens m and v,
// updates the weights, finds the new scales by shuffles, and stores m and v as codes.
//
// The levels of the dynamic maps lie in shared memory. Within a decade they are equally spaced, so a lane computes the
// nearest level, or the one below it, and one comparison corrects the result. A search would take eight steps through
// shared memory, and would bound the kernel.
#include "kernels/cuda/adamw.h"
#include "kernels/cuda/update.h"
#include "kernels/dynamic_map.h"

namespace shale::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpThreads;
constexpr int kOwn = kQuantizedBlock / kWarpThreads;  // Elements of a lane.
constexpr int64_t kBlockElements = kWarps * kQuantizedBlock;
// More edges than elements of a block of states: see ForParts.
using BlockEdges = DecayEdges<kQuantizedBlock + 8>;

struct Codes {
  Global<uint8_t> codes;
  Global<float> scales;
};

// A lane's elements of one state.
struct Own {
  float at[kOwn];
};

template <class Map>
SHALE_DEVICE void FillLevels(const Shared<float>& levels) {
  for (int level = threadIdx.x; level < Map::kLevels; level += kThreads) levels.Store(level, Map::At(level));
}

// Returns the level nearest to x, from [0, 1]; level 0 for a NaN.
template <class Map>
SHALE_DEVICE int NearestLevel(const Shared<float>& levels, float x) {
  if (!(x > Map::BoundaryAbove(0))) return 0;
  // Decade d has n levels at (10^(d-6)) (0.1 + 0.9 (k + 1/2) / n), so that x is nearest to level k of the decade if
  // x 10^(6-d) n / 0.9 - n / 9 lies between k and k + 1.
  float parts = Map::LevelsOf(0), inverse = Map::LevelsOf(0) * (1e6f / 0.9f), power = 1e6f;
  int count = Map::LevelsOf(0);
  SHALE_UNROLL
  for (int decade = 1; decade < Map::kDecades; ++decade) {
    power *= 0.1f;
    if (x > Map::BoundaryAbove(Map::FirstOf(decade) - 1)) {
      count = Map::LevelsOf(decade);
      parts = Map::LevelsOf(decade);
      inverse = Map::LevelsOf(decade) * (power / 0.9f);
    }
  }
  // The levels and this sum are rounded, by far less than the 1/64 that is subtracted, so k is never too high.
  int k = static_cast<int>(x * inverse - parts * (1.0f / 9) - 1.0f / 64);
  k = k < 0 ? 0 : k >= count ? count - 1 : k;
  const int level = Map::FirstOf(0) - Map::LevelsOf(0) + count + k;
  return x > (levels.Load(level) + levels.Load(level + 1)) * 0.5f ? level + 1 : level;
}

// Returns the values of a block of codes. All lanes of the warp must call it.
template <class Map>
SHALE_DEVICE Own Widened(const Shared<float>& levels, const Pack<uint8_t, kOwn>& codes, float scale_of_first_lane) {
  const float scale = __shfl_sync(kAllLanes, scale_of_first_lane, 0);
  Own values;
  for (int k = 0; k < kOwn; ++k) {
    const int level = static_cast<int>(codes.at[k]) - Map::kZeroCode;
    const float value = levels.Load(level < 0 ? -level : level);
    values.at[k] = (level < 0 ? -value : value) * scale;
  }
  return values;
}

// Sets `codes` to a lane's codes, and returns the scale of the block. Elements that lie past the end of the shard are
// zeros. All lanes of the warp must call it.
template <class Map>
SHALE_DEVICE float Quantize(const Shared<float>& levels, const Own& values, Pack<uint8_t, kOwn>& codes) {
  // The values are compared as integers, so that a NaN is larger than any number.
  unsigned largest = 0;
  for (int k = 0; k < kOwn; ++k) {
    const unsigned bits = __float_as_uint(fabsf(values.at[k]));
    largest = bits > largest ? bits : largest;
  }
  SHALE_UNROLL
  for (int lanes = kWarpThreads / 2; lanes > 0; lanes /= 2) {
    const unsigned other = __shfl_xor_sync(kAllLanes, largest, lanes);
    largest = other > largest ? other : largest;
  }
  const float scale = __uint_as_float(largest);
  for (int k = 0; k < kOwn; ++k) {
    // If the scale is 0, the ratio is NaN, which gives level 0.
    const float ratio = fabsf(values.at[k] / scale);
    const int nearest = NearestLevel<Map>(levels, ratio);
    const int level = ratio > 0 && nearest < Map::kLowestOfPositive ? Map::kLowestOfPositive : nearest;
    codes.at[k] = static_cast<uint8_t>(Map::CodeOf(level, values.at[k] < 0));
  }
  return scale;
}

// Elements [i, i + count) of a lane. For its other elements loads return zeros, or codes 0, and stores do nothing.
template <class Master>
struct Piece {
  const Master& master;
  int64_t i;
  int count;
  bool packs;

  SHALE_DEVICE Floats<kOwn> LoadMasters() const {
    if (packs) return master.template Load<kOwn>(i);
    Floats<kOwn> p = {};
    for (int k = 0; k < kOwn; ++k) {
      if (k < count) p.at[k] = master.template Load<1>(i + k).at[0];
    }
    return p;
  }
  SHALE_DEVICE void StoreMasters(const Floats<kOwn>& p) const {
    if (packs) return master.template Store<kOwn>(i, p);
    for (int k = 0; k < kOwn; ++k) {
      if (k < count) master.template Store<1>(i + k, Floats<1>{{p.at[k]}});
    }
  }
  SHALE_DEVICE Floats<kOwn> LoadGradients(const Global<float>& gradient) const {
    if (packs) return LoadFloats<kOwn>(gradient, i);
    Floats<kOwn> g = {};
    for (int k = 0; k < kOwn; ++k) {
      if (k < count) g.at[k] = gradient.Load(i + k);
    }
    return g;
  }
  SHALE_DEVICE Pack<uint8_t, kOwn> LoadCodes(const Global<uint8_t>& codes) const {
    if (packs) return codes.template Load<kOwn>(i);
    Pack<uint8_t, kOwn> pack = {};
    for (int k = 0; k < kOwn; ++k) {
      if (k < count) pack.at[k] = codes.Load(i + k);
    }
    return pack;
  }
  SHALE_DEVICE void StoreCodes(const Global<uint8_t>& codes, const Pack<uint8_t, kOwn>& pack) const {
    if (packs) return codes.Store(i, pack);
    for (int k = 0; k < kOwn; ++k) {
      if (k < count) codes.Store(i + k, pack.at[k]);
    }
  }
};

template <class Master, bool kPacks>
SHALE_KERNEL SHALE_BOUNDS(kThreads)
    AdamW8BitKernel(Master master, Global<float> update, Global<float> gradient, Codes m_P, Codes v_P, BlockEdges edges,
                    AdamWRates rates, int64_t n) {
  SHALE_SHARED_ARRAY(float, m_levels, SignedMap::kLevels);
  SHALE_SHARED_ARRAY(float, v_levels, UnsignedMap::kLevels);
  FillLevels<SignedMap>(m_levels);
  FillLevels<UnsignedMap>(v_levels);
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int64_t block = static_cast<int64_t>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarpThreads;
  if (block * kQuantizedBlock >= n) return;
  const int64_t i = block * kQuantizedBlock + lane * kOwn;
  const int count = static_cast<int>(n - i < kOwn ? n - i : kOwn);
  const Piece<Master> piece = {master, i, count, kPacks && count == kOwn};
  const Floats<kOwn> gradients = piece.LoadGradients(gradient);
  Floats<kOwn> p = piece.LoadMasters();
  Pack<uint8_t, kOwn> m_codes = piece.LoadCodes(m_P.codes), v_codes = piece.LoadCodes(v_P.codes);
  // One lane loads and stores the scales, so that no load of another lane has to be ordered before the store.
  const float m_scale = lane == 0 ? m_P.scales.Load(block) : 0, v_scale = lane == 0 ? v_P.scales.Load(block) : 0;
  if (update.Load(kUpdateSkip) != 0) return;
  Own m = Widened<SignedMap>(m_levels, m_codes, m_scale), v = Widened<UnsignedMap>(v_levels, v_codes, v_scale);
  const AdamWStep step(rates, update);
  const float factor = update.Load(kUpdateGradientFactor);
  DecayCursor<BlockEdges> cursor(edges, i);
  for (int k = 0; k < kOwn; ++k) {
    const bool decays = cursor.DecaysAt(i + k, k == 0);
    ApplyAdamW(rates, step, gradients.at[k] * factor, decays, m.at[k], v.at[k], p.at[k]);
    if (k >= count) m.at[k] = v.at[k] = 0;
  }
  const float new_m_scale = Quantize<SignedMap>(m_levels, m, m_codes);
  const float new_v_scale = Quantize<UnsignedMap>(v_levels, v, v_codes);
  piece.StoreMasters(p);
  piece.StoreCodes(m_P.codes, m_codes);
  piece.StoreCodes(v_P.codes, v_codes);
  if (lane == 0) {
    m_P.scales.Store(block, new_m_scale);
    v_P.scales.Store(block, new_v_scale);
  }
}

}  // namespace

absl::Status StartUpdate(const AdamW8BitRule& rule, const Update& op, StreamHandle stream) {
  return ForParts<BlockEdges, kQuantizedBlock>(op, [&](const Update& part, const BlockEdges& edges) {
    return WithMaster(part, [&](const auto& master) {
      using Master = std::decay_t<decltype(master)>;
      const int64_t n = part.weight_P.elements();
      const LaunchShape shape = {.grid = dim3(static_cast<unsigned>(CeilDivide(n, kBlockElements))),
                                 .block = dim3(kThreads)};
      const auto kernel = HasPacks(part) ? AdamW8BitKernel<Master, true> : AdamW8BitKernel<Master, false>;
      const Codes m = {Whole<uint8_t>(part.states[0], "m"), Whole<float>(part.states[2], "m_scale")};
      const Codes v = {Whole<uint8_t>(part.states[1], "v"), Whole<float>(part.states[3], "v_scale")};
      return Launch("AdamW8Bit", kernel, shape, stream, master, Whole<float>(part.update_5, "update"),
                    Whole<float>(part.gradient_P, "gradient"), m, v, edges, AdamWRates(rule), n);
    });
  });
}

}  // namespace shale::cuda
