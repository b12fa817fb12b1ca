#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/api/checkpoint.h"
#include "engine/c/calls.h"
#include "engine/c/handles.h"
#include "kernels/check.h"

namespace shale::c {
namespace {

Handles<std::atomic<bool>>& Stops() {
  static auto& stops = *new Handles<std::atomic<bool>>(HandleKind::kStop, "stop");
  return stops;
}

}  // namespace

absl::Status UseCheckpoint(const char* folder, absl::FunctionRef<absl::Status(const CheckpointReader&)> use) {
  SHALE_RETURN_IF_ERROR(Require(folder, "folder"));
  const absl::StatusOr<CheckpointReader> checkpoint = CheckpointReader::Open(folder);
  if (checkpoint.ok()) return use(*checkpoint);
  if (!absl::IsNotFound(checkpoint.status())) return checkpoint.status();
  // Only a damaged checkpoint makes way for an older one.
  absl::Status used;
  const auto use_if_intact = [&](const CheckpointReader& candidate) {
    used = use(candidate);
    return absl::IsDataLoss(used) ? used : absl::OkStatus();
  };
  SHALE_ASSIGN_OR_RETURN(const NewestCheckpoint newest, UseNewestCheckpoint(folder, use_if_intact));
  if (!newest.path.empty()) return used;
  return absl::NotFoundError(absl::StrCat(folder, " is no checkpoint, and there is none in it"));
}

absl::StatusOr<SamplingOptions> TakeSampling(const shale_sampling* sampling) {
  if (sampling == nullptr) return SamplingOptions{};
  SHALE_ASSIGN_OR_RETURN(const shale_sampling taken, TakeStruct(sampling, "sampling"));
  const SamplingOptions options{.repetition_penalty = taken.repetition_penalty == 0 ? 1 : taken.repetition_penalty,
                                .temperature = taken.temperature,
                                .top_k = taken.top_k,
                                .top_p = taken.top_p == 0 ? 1 : taken.top_p,
                                .min_p = taken.min_p,
                                .seed = taken.seed};
  SHALE_RETURN_IF_ERROR(CheckSampling(options));
  return options;
}

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
