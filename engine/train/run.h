// Runs a job to its end: trains, evaluates, saves and reports.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/api/trainer.h"
#include "engine/train/run_folder.h"

namespace shale {

// Prints one line, which it is given without a newline.
using PrintLine = std::function<void(absl::string_view)>;

// Calls Trainer::Run, appends every step and evaluation to the folder's metrics, and prints lines about steps,
// evaluations and checkpoints with `print`. If checkpoint.on_failure is kContinue, metrics that cannot be written do
// not end the run. REQUIRES: RunFolder::Begin succeeded.
absl::Status TrainToEnd(Trainer& trainer, RunFolder& folder, const PrintLine& print);

}  // namespace shale
