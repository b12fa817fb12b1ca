// The range of every number in a job spec, and the checks that concern one field at a time.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "engine/config/errors.h"
#include "proto/job.pb.h"

namespace shale {

// The allowed values of an integer field, both ends included.
struct IntRange {
  absl::string_view path;
  int64_t min;
  int64_t max;
  bool required = false;
};

// The allowed values of a floating-point field, both ends included.
struct RealRange {
  absl::string_view path;
  double min;
  double max;
};

// Return the range of the field at `path` ("batch.micro_batch"), or null if the path names no field of that type.
const IntRange* FindIntRange(absl::string_view path);
const RealRange* FindRealRange(absl::string_view path);

// Returns the range of the number at `path` as text: `1 to 1048576`.
std::string RangeText(absl::string_view path);

// Returns `value` in the fewest digits that read back as the same double.
std::string NumberText(double value);

// Reports, field by field: numbers out of range, not finite, or required and missing; enum numbers without a name;
// unknown fields; strings that are not one line of UTF-8. Sets each number or enum that it reports to an allowed value,
// so that later checks can go on with `job`.
void CheckFields(proto::Job* job, SpecErrors* errors);

}  // namespace shale
