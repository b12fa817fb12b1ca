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

// Steps until the trainer is done: all steps taken, or Trainer::RequestStop called. Writes every step and evaluation
// into the folder's metrics, the weights every checkpoint.every_steps and at the end, however the end came; lines go to
// `print`. A step that could not be applied (not finite, data lost) ends the run with the weights before it saved; a
// failure that leaves them in doubt saves nothing. REQUIRES: the folder has begun.
absl::Status TrainToEnd(Trainer& trainer, RunFolder& folder, const PrintLine& print);

}  // namespace shale
