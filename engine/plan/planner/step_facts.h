// What predicting the seconds of a job's step needs of the job (engine/plan/time/prediction.h).
#pragma once

#include <cstdint>

#include "engine/compile/memory/machine.h"
#include "engine/plan/config/job.h"
#include "engine/plan/planner/job_plan.h"
#include "engine/plan/planner/variant.h"
#include "engine/plan/time/prediction.h"
#include "proto/machine.pb.h"

namespace shale {

// Returns the facts of a job with this training graph and mesh, whose ranks run on `hosts` hosts, as many on each. If
// `hosts` is 0, each host has as many ranks as the machine has devices; on CPUs, one host has all.
StepFacts StepFactsOf(const Job& job, const ModelGraph& graph, const Mesh& mesh, const proto::MachineProfile& machine,
                      int64_t hosts = 0);

// Does the same for a planned job.
inline StepFacts StepFactsOf(const Job& job, const JobPlan& plan, const proto::MachineProfile& machine,
                             int64_t hosts = 0) {
  return StepFactsOf(job, plan.train.graph, plan.options.mesh, machine, hosts);
}

// Returns the share of a step that is measured or interpolated (kCoveredShare).
inline double CoveredShare(const Prediction& step) {
  return step.known[static_cast<size_t>(Knowledge::kMeasured)] +
         step.known[static_cast<size_t>(Knowledge::kInterpolated)];
}

// Returns the budget of a rank on a machine with these GPUs: the memory of one, less what CUDA and its libraries take.
DefaultBudget BudgetOn(const proto::MachineProfile& machine);

// Predicts a step of a planned job.
inline Prediction PredictStep(const Job& job, const JobPlan& plan, const proto::MachineProfile& machine,
                              int64_t hosts = 0) {
  return Predict(plan.train.step.program, StepFactsOf(job, plan, machine, hosts), machine);
}

}  // namespace shale
