// How the host runner words what it found.
#pragma once

#include <string>

#include "kernels/cuda/host/execution.h"

namespace shale::cuda_on_host {

std::string Text(const Index3& index);  // "(1, 0, 0)"
std::string Text(const Site& site);     // "kernels/cuda/norm.cu:31"

// Empty for a shape that every device of our kind takes.
std::string WrongWithShape(const Shape& shape);

}  // namespace shale::cuda_on_host
