// The dynamic maps of 8-bit optimizer states: 256 values in [-1, 1] or in [0, 1], dense near 0.
//
// The values are those of create_dynamic_map in bitsandbytes (bitsandbytes/functional.py of
// github.com/bitsandbytes-foundation/bitsandbytes; Dettmers et al., 2022). Their bits agree if PyTorch computes
// linspace with fused multiply-adds, which depends on the processor. Decade d = 0 ... 6 cuts [0.1, 1] into equal parts,
// 2^d of them in the signed map and 2^(d+1) in the unsigned map, and holds the centers of the parts times 10^(d-6). In
// addition, both maps hold 0 and 1, and the signed map holds the negatives of its decades. A code is the index of a
// value in ascending order.
#pragma once

#include <cstdint>

namespace shale {

// The levels of a map are its values from 0 up: level 0 is 0 and the last level is 1. All functions are constexpr, so
// that both host code and kernels can call them.
template <bool kSigned>
struct DynamicMap {
  static constexpr int kDecades = 7;
  static constexpr int kLevels = kSigned ? 129 : 256;
  static constexpr int kZeroCode = kSigned ? 127 : 0;
  // The lowest level to which a number above 0 is rounded.
  static constexpr int kLowestOfPositive = kSigned ? 0 : 1;

  // LevelsOf returns the number of levels in a decade. FirstOf returns the lowest of them.
  static constexpr int LevelsOf(int decade) { return (kSigned ? 1 : 2) << decade; }
  static constexpr int FirstOf(int decade) { return LevelsOf(decade) - (kSigned ? 0 : 1); }

  // Returns the value of a level.
  static constexpr float At(int level) {
    if (level <= 0) return 0;
    if (level >= kLevels - 1) return 1;
    float power = 1e-6f;
    int decade = 0;
    for (; decade < kDecades - 1 && level >= FirstOf(decade + 1); ++decade) power = PowerAfter(decade);
    const int part = level - FirstOf(decade), parts = LevelsOf(decade);
    return (Edge(part, parts) + Edge(part + 1, parts)) * 0.5f * power;
  }

  // Returns the largest number whose nearest level is `level`. REQUIRES: level < kLevels - 1
  static constexpr float BoundaryAbove(int level) { return (At(level) + At(level + 1)) * 0.5f; }

  // Returns the code of a level, or of its negative if `negative` is set. The map has no code for -0 and -1: they
  // become the negative values nearest to them.
  static constexpr int CodeOf(int level, bool negative) {
    if (!negative) return kZeroCode + level;
    return kZeroCode - (level < 1 ? 1 : level > kZeroCode ? kZeroCode : level);
  }

  // Returns the value of a code.
  static constexpr float ValueOf(int code) { return code < kZeroCode ? -At(kZeroCode - code) : At(code - kZeroCode); }

 private:
  // Returns 10^(decade-5), the factor of the next decade.
  static constexpr float PowerAfter(int decade) {
    switch (decade) {
      case 0: return 1e-5f;
      case 1: return 1e-4f;
      case 2: return 1e-3f;
      case 3: return 1e-2f;
      case 4: return 1e-1f;
      default: return 1;
    }
  }

  // Returns element k of linspace(0.1, 1, parts + 1), which PyTorch computes from the nearer end. The product and the
  // sum are exact in fp64, so that one rounding remains.
  static constexpr float Edge(int k, int parts) {
    const float step = (1.0f - 0.1f) / static_cast<float>(parts);
    return k < (parts + 1) / 2 ? static_cast<float>(static_cast<double>(0.1f) + static_cast<double>(step) * k)
                               : static_cast<float>(1.0 - static_cast<double>(step) * (parts - k));
  }
};

using SignedMap = DynamicMap<true>;
using UnsignedMap = DynamicMap<false>;

}  // namespace shale
