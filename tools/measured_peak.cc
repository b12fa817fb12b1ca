#include "tools/measured_peak.h"

#include <ctime>
#include <utility>

#include "absl/status/statusor.h"
#include "engine/config/print.h"
#include "engine/train/peak_flops.h"
#include "kernels/check.h"

namespace shale {
namespace {

// Returns the time as "2026-01-31 23:59:00 UTC".
std::string TimeNow() {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  char text[64];
  return gmtime_r(&now, &utc) != nullptr && std::strftime(text, sizeof(text), "%F %T UTC", &utc) > 0 ? text : "";
}

}  // namespace

absl::Status DecidePeakFlops(World& world, const Backend& backend, const Job& job, TrainerOptions& options,
                             std::string& measured) {
  if (job.telemetry.peak_flops_measured.empty()) options.peak_flops = job.telemetry.peak_flops;
  if (options.peak_flops != 0) return absl::OkStatus();
  const auto measure = [&]() -> absl::StatusOr<std::string> {
    const DType dtype = job.precision.compute == ComputePrecision::kBFloat16 ? DType::kBFloat16 : DType::kFloat32;
    if (backend.NominalPeakFlops(dtype) == 0) measured = TimeNow();
    SHALE_ASSIGN_OR_RETURN(options.peak_flops, PeakFlops(backend, dtype, world.ranks_on_host()));
    return "";
  };
  return world.InProcessZero(measure).status();
}

std::string RecordedJob(Job job, double peak_flops, const std::string& measured) {
  if (!job.telemetry.peak_flops_measured.empty()) job.telemetry.peak_flops = 0;  // That of a former run.
  job.telemetry.peak_flops_measured = measured;
  if (!measured.empty()) job.telemetry.peak_flops = peak_flops;
  return ResolvedJobText(job);
}

}  // namespace shale
