// Knows the range of every number in a job spec, and checks the fields of a spec one at a time.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "engine/config/errors.h"
#include "engine/config/field_range.h"
#include "proto/job.pb.h"

namespace shale {

// Return the range of the field at `path` ("batch.micro_batch"), or null if `path` names no int64 field (FindIntRange)
// or no floating-point field (FindRealRange).
const IntRange* FindIntRange(absl::string_view path);
const RealRange* FindRealRange(absl::string_view path);

// Returns the range of the number at `path` as text: `1 to 1048576`. A seed may have every 64-bit value.
std::string RangeText(absl::string_view path);

// Returns `value` in the fewest digits that read back as the same double.
std::string NumberText(double value);

// Checks every field of `job` and reports in `errors`: numbers that are out of range, not finite, or required and
// missing; enum numbers without a name; unknown fields; strings that are not one line of UTF-8. Sets each number or
// enum that it reports to an allowed value, so that later checks can go on with `job`.
void CheckFields(proto::Job* job, SpecErrors* errors);

}  // namespace shale
