// The handles of jobs.
#pragma once

#include "engine/c/handles.h"
#include "engine/config/job.h"

namespace shale::c {

Handles<const Job>& Jobs();

}  // namespace shale::c
