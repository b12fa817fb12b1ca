// Checks the rules between fields. They forbid contradictions, settings without effect, and products of sizes that are
// too large.
#pragma once

#include "engine/plan/config/errors.h"
#include "engine/plan/config/job.h"
#include "proto/job.pb.h"

namespace shale {

// Reports in `errors` every rule that `job` breaks. `job` is JobFromSpec(spec), and `spec` shows which values were
// given and which are defaults. Skips rules about a field that `errors` already lists as faulty.
void CheckRules(const proto::Job& spec, const Job& job, SpecErrors* errors);

// Reports in `errors` every rule about `data` that `job` breaks. CheckRules calls it.
void CheckDataRules(const Job& job, SpecErrors* errors);

// Reports in `errors` every product of sizes above 2^62, among those that the engine forms. CheckRules calls it.
void CheckSizes(const Job& job, SpecErrors* errors);

}  // namespace shale
