// Seconds of a work from those of others of its kind, inside engine/plan/time.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "engine/plan/time/rates.h"
#include "engine/plan/time/work.h"

namespace shale {

struct CurveValue {
  double seconds = 0;
  double spread = 0;
  bool is_inside = false;  // Each size lies between sizes of the points.
};

// Returns the seconds of `work`, whose sizes have the logarithms `sizes`, by the points, near ones most. With
// arithmetic, the logarithm of the time for each FLOP is a linear function of the logarithms of the sizes, so that a
// law with any powers of the sizes comes out as it is. What moves bytes takes a latency and a time for each byte.
// REQUIRES: there are points, each with as many sizes as the work.
CurveValue ValueOf(absl::Span<const Rates::Point> points, const Work& work, const std::vector<double>& sizes);

}  // namespace shale
