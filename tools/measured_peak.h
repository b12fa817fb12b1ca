// The peak FLOP/s that `train` measures for MFU.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "engine/config/job.h"
#include "engine/launch/world.h"
#include "engine/runtime/backend.h"
#include "engine/train/trainer_options.h"

namespace shale {

// Decides what MFU compares with, and sets it in `options`. If it has to be measured, does so in process 0, which
// reports it, and sets `measured` to the time there. A peak that a former run measured counts as none.
absl::Status DecidePeakFlops(World& world, const Backend& backend, const Job& job, TrainerOptions& options,
                             std::string& measured);

// Returns the text of the resolved job as a run folder records it: with the peak, if that was measured, and the time.
std::string RecordedJob(Job job, double peak_flops, const std::string& measured);

}  // namespace shale
