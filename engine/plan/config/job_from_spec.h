// Turns a spec into plain structs, once each of its fields is in range, and back.
#pragma once

#include "engine/plan/config/job.h"
#include "proto/job.pb.h"

namespace shale {

// Returns the job that `spec` describes, with all defaults that follow from the spec filled in. Settings that depend on
// the data or on the machine stay open (engine/api/plan.h decides them). Settings that contradict each other
// are kept: CheckRules (engine/plan/config/checks.h) reports them. REQUIRES: CheckFields
// (engine/plan/config/checks.h) has checked `spec`.
Job JobFromSpec(const proto::Job& spec);

// Returns the spec of a job, with every default written out, also in fields that have no effect
// (engine/plan/config/checks.h). Leaves out what is still undecided, and what is to be printed only if it was
// changed.
proto::Job SpecOf(const Job& job);

}  // namespace shale
