// Tags of the messages between two processes of a group. Data of different collectives never has the same tag, so that
// ranks which disagree do not receive into memory that was not meant for it.
#pragma once

#include <cstdint>

#include "sharding/comm/agreement.h"

namespace shale {

inline constexpr uint64_t kGlooHelloTag = 1, kGlooNoticeTag = 2, kGlooWatchTag = 3;

// The receiver of data that is meant for all ranks of a process.
inline constexpr int kGlooAllRanks = 0xffff;

// Returns a tag of data of collective `number`, in which the ranks want `wish`.
inline uint64_t GlooDataTag(uint64_t number, const CollectiveWish& wish, int from_rank, int to_rank) {
  uint64_t mixed = number * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(wish.elements);
  mixed = (mixed ^ (mixed >> 29)) * 0xbf58476d1ce4e5b9u + (static_cast<uint64_t>(wish.kind) << 8) +
          static_cast<uint64_t>(wish.dtype);
  mixed = (mixed ^ (mixed >> 32)) * 0x94d049bb133111ebu;
  const uint64_t key = (mixed >> 32) | (uint64_t{1} << 31);  // Tags of data are above those of other messages.
  return key << 32 | static_cast<uint64_t>(from_rank) << 16 | static_cast<uint64_t>(to_rank);
}

}  // namespace shale
