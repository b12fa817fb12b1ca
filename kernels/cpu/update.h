// Declarations for the kernels of update rules. Private to kernels/cpu. A rule needs an overload of UpdateElements, in
// a file of its own.
#pragma once

#include <cstdint>

#include "kernels/update_rules.h"

namespace shale {
struct Update;  // kernels/ops/update.h
}  // namespace shale

namespace shale::cpu {

// Adjacent elements of a shard, up to `end`, which either all have weight decay or all have none.
struct DecayRun {
  int64_t end;
  bool decays;
};

// Returns the longest such run that begins at element `begin` of the shard and ends at `end` or before.
DecayRun DecayRunAt(const Update& op, int64_t begin, int64_t end);

// Each UpdateElements applies a rule to elements [begin, end) of the shard, on the calling thread. `begin` is a
// multiple of kElementsPerBlock. Full vectors of bf16 weights may bypass the caches, so the caller must order these
// stores (hwy::FlushStream).
#define SHALE_DECLARE(Rule, kind) void UpdateElements(const Rule& rule, const Update& op, int64_t begin, int64_t end);
SHALE_EACH_UPDATE_RULE(SHALE_DECLARE)
#undef SHALE_DECLARE

}  // namespace shale::cpu
