// The range of every number in a job spec, and the checks that each field can be given alone.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "engine/config/errors.h"
#include "proto/job.pb.h"

namespace shale {

// Both ends belong to the range.
struct IntRange {
  absl::string_view path;
  int64_t min;
  int64_t max;
  bool required = false;
};

struct RealRange {
  absl::string_view path;
  double min;
  double max;
};

// Null if the path names no field of that type.
const IntRange* FindIntRange(absl::string_view path);
const RealRange* FindRealRange(absl::string_view path);

// `1 to 1048576`, the range of the number at `path`.
std::string RangeText(absl::string_view path);

// A double in the fewest digits that read back as the same double.
std::string NumberText(double value);

// Reports, field by field: numbers out of range, not finite, or required and missing; enum numbers without a name;
// unknown fields; strings that are not one line of UTF-8. A number or enum so reported is then given a value that is
// allowed, so that whoever reads on meets no nonsense.
void CheckFields(proto::Job* job, SpecErrors* errors);

}  // namespace shale
