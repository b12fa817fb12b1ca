#include "tests/sharding/comm/nccl/nccl_place.h"

#include "kernels/check.h"
#include "sharding/comm/nccl/nccl_library.h"
#include "tests/gpu/gpu.h"

namespace shale::testing {

absl::StatusOr<NcclPlace> CreateNcclPlace() {
  NcclPlace place = {.runtime = Gpu()};
  SHALE_ASSIGN_OR_RETURN(place.nccl, LoadNccl());
  return place;
}

}  // namespace shale::testing
