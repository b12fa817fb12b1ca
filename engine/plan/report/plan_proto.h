// The message of a plan, inside engine/plan/report. engine/api/plan_text.h is what other packages use.
#pragma once

#include "engine/api/plan_text.h"
#include "proto/plan.pb.h"

namespace shale {

proto::Plan PlanProto(const Admission& admission, PlanDetail detail, const PlanSeconds& seconds);
proto::Plan PlanProto(const Job& job, const JobPlan& plan, PlanDetail detail);

}  // namespace shale
