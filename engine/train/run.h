// A whole run: trains, evaluates, saves, and says so.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/train/run_folder.h"
#include "engine/train/trainer.h"

namespace shale {

// Takes one line, without its end.
using PrintLine = std::function<void(absl::string_view)>;

// Trainer::Run with every step and evaluation written into the folder's metrics, and lines about them and about
// checkpoints given to `print`. REQUIRES: the folder has begun.
absl::Status TrainToEnd(Trainer& trainer, RunFolder& folder, const PrintLine& print);

}  // namespace shale
