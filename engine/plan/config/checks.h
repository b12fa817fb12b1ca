// The checks of a job spec: each field by itself, its conditions (the values of other fields with which alone it has an
// effect: Condition in proto/field.proto), and the rules between fields, which forbid contradictions, settings without
// effect, and products of sizes that are too large.
#pragma once

#include "engine/plan/config/errors.h"
#include "engine/plan/config/job.h"
#include "proto/job.pb.h"

namespace shale {

// Checks every field of `job` and reports in `errors`: numbers that are out of range, not finite, or required and
// missing; enum numbers without a name; unknown fields; strings that are not one line of UTF-8. Sets each number or
// enum that it reports to an allowed value, so that later checks can go on with `job`.
void CheckFields(proto::Job* job, SpecErrors* errors);

// Reports in `errors` each field that `spec` gives although a condition of it does not hold: `spec` shows what is
// given, and `resolved` (SpecOf in engine/plan/config/job_from_spec.h) the values of all fields.
void CheckConditions(const proto::Job& spec, const proto::Job& resolved, SpecErrors* errors);

// Clears the fields of `resolved` that have no effect, so that it can be read as a job.
void ClearWithoutEffect(proto::Job* resolved);

// Reports in `errors` every rule that `job` breaks. `job` is JobFromSpec(spec), and `spec` shows which values were
// given and which are defaults. Skips rules about a field that `errors` already lists as faulty.
void CheckRules(const proto::Job& spec, const Job& job, SpecErrors* errors);

// Reports in `errors` every rule about `data` that `job` breaks. CheckRules calls it.
void CheckDataRules(const Job& job, SpecErrors* errors);

// Reports in `errors` every product of sizes above 2^62, among those that the engine forms. CheckRules calls it.
void CheckSizes(const Job& job, SpecErrors* errors);

}  // namespace shale
