// Functions that the reference's update rules share. Private to kernels/reference. A rule needs an overload of Apply,
// in a file of its own.
#pragma once

#include <cstdint>

#include "kernels/update_rules.h"

namespace shale {
struct Update;  // kernels/ops/update.h
}  // namespace shale

namespace shale::reference {

// The values of update_5 that rules use (kUpdate*).
struct UpdateStep {
  double rate, correction1, correction2, gradient_factor;
};

// Returns the master weight of element i of the shard.
double Master(const Update& op, int64_t i);
// Stores the master weight of element i, rounded to f32, and the weight that follows from it.
void PutMaster(const Update& op, int64_t i, double value);
// Stores element i of a state. Returns its value in fp32 (or fp64), which the update goes on with: a state in bf16 is
// rounded only as it is stored.
double PutState(const Update& op, int state, int64_t i, double value);
// Returns whether element i of the shard has weight decay.
bool Decays(const Update& op, int64_t i);

// Returns the master weight of element i, less rate * weight_decay of itself if the element has weight decay.
double DecayedMaster(const Update& op, int64_t i, const UpdateStep& step, float weight_decay);

// Returns AdamW's step, which is subtracted from an element whose new moments are m and v.
double AdamWStep(const UpdateStep& step, float epsilon, double m, double v);

// Each Apply applies a rule to the whole shard.
#define SHALE_DECLARE(Rule, kind) void Apply(const Rule& rule, const Update& op, const UpdateStep& step);
SHALE_EACH_UPDATE_RULE(SHALE_DECLARE)
#undef SHALE_DECLARE

}  // namespace shale::reference
