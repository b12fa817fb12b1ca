// The figure of a step's seconds in the page of a plan, inside engine/plan/report.
#pragma once

#include <string>

#include "engine/compile/program/program.h"
#include "engine/plan/time/prediction.h"

namespace shale {

// Returns a figure in HTML: the live bytes of the arena and below them the streams, over the predicted seconds of a
// step. What lies on the critical path has a color of its own. Its size is bounded, whatever the length of the program.
std::string TimeFigure(const StepProgram& program, const Prediction& prediction);

}  // namespace shale
