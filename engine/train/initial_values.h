// What parameters are before they are trained.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "engine/graph/graph.h"

namespace shale {

// Elements [begin, begin + values.size()) of a parameter: a function of the seed, the parameter's name and the element,
// so that they depend neither on how the job is sharded nor on the rest of the model. Works on `threads` threads, which
// are gone when it returns; where the system has fewer to give, on those.
void FillInitialValues(const Parameter& parameter, uint64_t seed, int64_t begin, absl::Span<float> values,
                       int threads = 1);

}  // namespace shale
