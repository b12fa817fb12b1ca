// Checks the fields of a job spec one at a time.
#pragma once

#include "engine/config/errors.h"
#include "proto/job.pb.h"

namespace shale {

// Checks every field of `job` and reports in `errors`: numbers that are out of range, not finite, or required and
// missing; enum numbers without a name; unknown fields; strings that are not one line of UTF-8. Sets each number or
// enum that it reports to an allowed value, so that later checks can go on with `job`.
void CheckFields(proto::Job* job, SpecErrors* errors);

}  // namespace shale
