#include "engine/c/stops.h"

#include "absl/status/status.h"
#include "engine/c/calls.h"
#include "kernels/check.h"

namespace shale::c {
namespace {

Handles<std::atomic<bool>>& Stops() {
  static auto& stops = *new Handles<std::atomic<bool>>(HandleKind::kStop, "stop");
  return stops;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const std::atomic<bool>>> TakeStop(shale_stop stop) {
  if (stop == 0) return std::shared_ptr<const std::atomic<bool>>();
  return Stops().Share(stop);
}

}  // namespace shale::c

using shale::c::Call;
using shale::c::Stops;

shale_code shale_stop_create(shale_stop* stop, shale_error* error) {
  return Call(error, [&]() -> absl::Status {
    SHALE_RETURN_IF_ERROR(shale::c::Require(stop, "stop"));
    SHALE_ASSIGN_OR_RETURN(*stop, Stops().Add(std::make_shared<std::atomic<bool>>(false)));
    return absl::OkStatus();
  });
}

shale_code shale_stop_request(shale_stop stop, shale_error* error) {
  return Call(error, [&]() -> absl::Status {
    SHALE_ASSIGN_OR_RETURN(const auto requested, Stops().Share(stop));
    *requested = true;
    return absl::OkStatus();
  });
}

shale_code shale_stop_free(shale_stop stop, shale_error* error) {
  return Call(error, [&] { return Stops().Free(stop); });
}
