// Turns a spec whose fields are each in range into plain structs.
#pragma once

#include "engine/config/job.h"
#include "proto/job.pb.h"

namespace shale {

// Returns the job that `spec` describes, with all defaults that follow from the spec filled in. What a job leaves to
// its data or to the machine stays open (engine/planner/resolve_job.h). Settings that contradict each other become
// values that CheckRules (engine/config/rules.h) reports. REQUIRES: CheckFields (engine/config/ranges.h) went over
// `spec`.
Job JobFromSpec(const proto::Job& spec);

}  // namespace shale
