// Tables of the dynamic maps for vector code: the value of every code, and the level nearest to a number.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/dynamic_map.h"

namespace shale::cpu {

template <class Map>
struct CodeValues {
  float at[256] = {};
  constexpr CodeValues() {
    for (int code = 0; code < 256; ++code) at[code] = Map::ValueOf(code);
  }
};
template <class Map>
inline constexpr CodeValues<Map> kCodeValues;

// The upper 16 bits of an fp32 number are its key. Numbers of one key lie so near to one another that at most one
// boundary between two levels is among them. The entry of a key is 2^16 times the level below that boundary, plus
// 0xffff, minus the lower 16 bits of the boundary. Without a boundary it is 2^16 times the level. So (entry + lower 16
// bits of x) / 2^16 is the level of x: the sum carries into the next level exactly if x lies above the boundary.
template <class Map>
struct LevelTable {
  static constexpr int32_t kFirstKey = (127 - 23) << 7;  // 2^-23: smaller numbers are nearest to 0.
  static constexpr int32_t kLastKey = 127 << 7;          // 1.
  static constexpr int32_t kNaNKey = kLastKey + 1;       // Stands for all larger keys: level 0.
  int32_t entries[kNaNKey - kFirstKey + 1] = {};
  bool exact = true;  // Whether no key has two boundaries, and none lies below the first key.

  constexpr LevelTable() {
    int level = 0;
    for (int32_t key = kFirstKey; key <= kLastKey; ++key) {
      int32_t& entry = entries[key - kFirstKey];
      entry = level << 16;
      for (int found = 0; level < Map::kLevels - 1; ++level, ++found) {
        const auto boundary = std::bit_cast<uint32_t>(Map::BoundaryAbove(level));
        if (static_cast<int32_t>(boundary >> 16) > key) break;
        exact = exact && found == 0 && static_cast<int32_t>(boundary >> 16) == key;
        entry += 0xffff - static_cast<int32_t>(boundary & 0xffff);
      }
    }
    exact = exact && level == Map::kLevels - 1;
  }
};
template <class Map>
inline constexpr LevelTable<Map> kLevelTable;

static_assert(kLevelTable<SignedMap>.exact && kLevelTable<UnsignedMap>.exact);

}  // namespace shale::cpu
