// Computes the initial values of parameters.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "engine/graph/graph.h"

namespace shale {

// Fills `values` with the initial values of elements [begin, begin + values.size()) of a parameter. The value of an
// element is a function of the seed, the parameter's name and the element's index: it depends neither on the sharding
// nor on the rest of the model. Any thread may call it.
void FillInitialValues(const Parameter& parameter, uint64_t seed, int64_t begin, absl::Span<float> values);

}  // namespace shale
