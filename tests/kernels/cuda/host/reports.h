// Functions that word the errors that Execution finds.
#pragma once

#include <string>

#include "tests/kernels/cuda/host/execution.h"

namespace shale::cuda_on_host {

std::string Text(const Index3& index);  // "(1, 0, 0)"
std::string Text(const Site& site);     // "kernels/cuda/norm.cu:31"

// Returns what is wrong with a launch shape, or an empty string if every GPU that we support accepts it.
std::string WrongWithShape(const Shape& shape);

}  // namespace shale::cuda_on_host
