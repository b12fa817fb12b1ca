// Text about the seconds of a step, for people.
#pragma once

#include <string>

#include "engine/plan/time/prediction.h"

namespace shale {

// Returns what `plan` prints about the seconds of a step: how long it takes and how well that is known, tokens a
// second, what it waits for, and how busy the streams are. Ends in a newline.
std::string TimeText(const Prediction& prediction);

// Returns the critical path as a table: each kind of instruction in each kind of unit that it goes through.
std::string PathText(const Prediction& prediction);

}  // namespace shale
