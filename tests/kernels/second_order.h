// Lets a test choose the order in which stand-ins for a GPU run kernels.
#pragma once

#include <cstdlib>

#include "tests/kernels/cuda/host/stand_in_runtime.h"

namespace shale::testing {

// Returns options with which whole warps run ahead of others and kernels of several streams run block by block, if the
// environment has SHALE_SECOND_ORDER. Otherwise returns those of the usual order.
inline cuda_on_host::StandInOptions TestedOrder() {
  if (std::getenv("SHALE_SECOND_ORDER") == nullptr) return {};
  return {.order = cuda_on_host::ThreadOrder::kWarpsAhead, .interleave = true};
}

}  // namespace shale::testing
