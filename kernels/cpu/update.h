// What the kernels of update rules share. Private to kernels/cpu. A rule needs an overload of UpdateElements, in a file
// of its own.
#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace shale::cpu {

// Adjacent elements of a shard, up to `end`, which either all have weight decay or all have none.
struct DecayRun {
  int64_t end;
  bool decays;
};

// Returns the longest such run that begins at element `begin` of the shard and ends at `end` or before.
DecayRun DecayRunAt(const Update& op, int64_t begin, int64_t end);

// Apply a rule to elements [begin, end) of the shard, on the calling thread. `begin` is a multiple of
// kElementsPerBlock. Full vectors of bf16 weights may bypass the caches: the caller orders these stores
// (hwy::FlushStream).
void UpdateElements(const AdamWRule& rule, const Update& op, int64_t begin, int64_t end);
void UpdateElements(const SgdRule& rule, const Update& op, int64_t begin, int64_t end);
void UpdateElements(const LionRule& rule, const Update& op, int64_t begin, int64_t end);
void UpdateElements(const AdamW8BitRule& rule, const Update& op, int64_t begin, int64_t end);

}  // namespace shale::cpu
