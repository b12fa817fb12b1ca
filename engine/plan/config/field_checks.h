// Checks the fields of a job spec one at a time.
//
// The conditions of fields: the values of other fields with which alone they have an effect (Condition in
// proto/field.proto).
#pragma once

#include "engine/plan/config/errors.h"
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

}  // namespace shale
