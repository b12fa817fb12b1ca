// The conditions of fields: the values of other fields with which alone they have an effect (Condition in
// proto/field.proto).
#pragma once

#include "engine/config/errors.h"
#include "proto/job.pb.h"

namespace shale {

// Reports in `errors` each field that `spec` gives although a condition of it does not hold: `spec` shows what is
// given, and `resolved` (SpecOf in engine/config/job_from_spec.h) the values of all fields.
void CheckConditions(const proto::Job& spec, const proto::Job& resolved, SpecErrors* errors);

// Clears the fields of `resolved` that have no effect, so that it can be read as a job.
void ClearWithoutEffect(proto::Job* resolved);

}  // namespace shale
