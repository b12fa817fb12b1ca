// How far apart two runs of one step are, and how far apart sums in another order may put them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace shale {

// Values of each parameter, by name: weights or gradients, in row-major order.
using ParameterValues = std::map<std::string, std::vector<float>>;

// Returns the largest relative distance ||a - b|| / max(||b||, floor) over the parameters of two maps with the same
// keys. The floor is a thousandth of the norm of all of `b`: a gradient that is zero except for rounding (a key bias)
// is measured against it. Returns infinity if a difference is not finite. Sets *worst, unless it is null, to the name
// of the parameter that has the distance.
double LargestDistance(const ParameterValues& a, const ParameterValues& b, std::string* worst);

// Returns the relative distance that losses and gradients of the same `targets` targets may have if their sums ran in
// another order.
//
// In fp32, two orders of summing T contributions of random signs differ by about sqrt(T) 2^-24 of the norm of the sum.
// A factor of 40 has room for contributions of different sizes and for the blocks of matmuls. A lost or doubled target
// changes a gradient by 1 / T at least, which is more up to T = 5,000. If anything is `rounded` to bf16 (or TF32),
// blocks of matmuls may make an activation round the other way: 2^-9 of one activation, seen through a gradient. That
// has no bound that sizes give; a hundredth of the norm is what the laws of training steps allow too.
double ReorderedTolerance(int64_t targets, bool rounded);

}  // namespace shale
