// What the laws of training steps are tested on. A test links one implementation of it, and so there is a test of the
// same laws for each backend.
#pragma once

#include <memory>

#include "engine/runtime/backend.h"
#include "engine/runtime/ops_kind.h"

namespace shale::testing {

// `threads` are those of a rank's kernels, where they are a matter of choice; `ops` says what multiplies matrices.
std::unique_ptr<Backend> TestedBackend(OpsKind ops, int threads);

// Whether it is fast enough for every combination; else one of each kind must do.
bool TestsEveryCombination();

}  // namespace shale::testing
