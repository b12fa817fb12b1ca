// Turns a spec into plain structs, once each of its fields is in range.
#pragma once

#include "engine/config/job.h"
#include "proto/job.pb.h"

namespace shale {

// Returns the job that `spec` describes, with all defaults that follow from the spec filled in. Settings that depend on
// the data or on the machine stay open (engine/api/plan.h decides them). Settings that contradict each other
// are kept: CheckRules (engine/config/rules.h) reports them. REQUIRES: CheckFields (engine/config/ranges.h) has checked
// `spec`.
Job JobFromSpec(const proto::Job& spec);

}  // namespace shale
