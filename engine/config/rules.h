// Rules between fields: contradictions, settings without effect, products of sizes that are too large.
#pragma once

#include "engine/config/errors.h"
#include "engine/config/job.h"
#include "proto/job.pb.h"

namespace shale {

// Reports in `errors` every rule that the job breaks. `job` is what `spec` resolves to; `spec` tells which values were
// given and which are defaults. Skips rules on a field that `errors` already lists as faulty.
void CheckRules(const proto::Job& spec, const Job& job, SpecErrors* errors);

// Checks that no product of sizes that the engine forms exceeds 2^62. CheckRules calls it.
void CheckSizes(const Job& job, SpecErrors* errors);

}  // namespace shale
