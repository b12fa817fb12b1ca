// Checks the gradients of a job's model against differences of its loss.
#pragma once

#include "engine/api/verify.h"
#include "engine/verify/division_checks.h"

namespace shale {

// Runs one step in fp32, from the job's initial weights with some noise (at exact zeros and ones, gradients may vanish
// that do not elsewhere), and compares the gradient of each parameter with central differences of the loss along two
// directions: that of the gradient itself, and a random one, in which a part of the gradient that is missing shows. If
// a gradient is zero, both directions are random.
//
// The tolerance follows from the differences themselves: each direction is measured at two distances, h and h / 2. What
// they differ by is more than what is wrong with their extrapolation, and the rounding of the loss, divided by h, is
// known too. A gradient is wrong only if two pairs of distances say so.
//
// Takes parameters of the first unit and of the last before those in between, until `seconds` have passed; the remark
// says how many were checked.
VerifyRow CheckGradients(VerifiedJob& verified, double seconds);

}  // namespace shale
