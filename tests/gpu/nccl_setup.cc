#include "tests/sharding/comm/nccl/nccl_setup.h"

#include "kernels/check.h"
#include "sharding/comm/nccl/nccl_library.h"
#include "tests/gpu/gpu.h"

namespace shale::testing {

absl::StatusOr<NcclSetup> CreateNcclSetup() {
  NcclSetup setup = {.runtime = Gpu()};
  SHALE_ASSIGN_OR_RETURN(setup.nccl, LoadNccl());
  return setup;
}

}  // namespace shale::testing
