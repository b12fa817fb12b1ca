// What predicting the seconds of a job's step needs of the job (engine/plan/time/prediction.h).
#pragma once

#include <array>
#include <cstdint>

#include "engine/compile/memory/machine.h"
#include "engine/plan/config/job.h"
#include "engine/plan/planner/job_plan.h"
#include "engine/plan/planner/variant.h"
#include "engine/plan/time/prediction.h"
#include "proto/machine.pb.h"

namespace shale {

// Where the ranks of a job run. 0: not known.
struct RankPlaces {
  int64_t hosts = 0;      // With as many ranks on each, as far as they go.
  int64_t processes = 0;  // On all hosts together.
};

// Returns the facts of a job with this training graph and mesh, whose ranks run in these places. If the hosts are not
// known, each has as many ranks as the machine has devices; on CPUs, one host has all. If the processes are not known,
// each host has one.
StepFacts StepFactsOf(const Job& job, const ModelGraph& graph, const Mesh& mesh, const proto::MachineProfile& machine,
                      const RankPlaces& places = {});
// Does the same without what MFU counts, which takes long to count and changes no seconds.
StepFacts FactsOfSeconds(const Job& job, const Mesh& mesh, const proto::MachineProfile& machine,
                         const RankPlaces& places);

// Does the same for a planned job.
inline StepFacts StepFactsOf(const Job& job, const JobPlan& plan, const proto::MachineProfile& machine,
                             const RankPlaces& places = {}) {
  return StepFactsOf(job, plan.train.graph, plan.options.mesh, machine, places);
}

// Returns the share of a step that is measured or interpolated (kCoveredShare).
inline double CoveredShare(const std::array<double, kKnowledges>& known) {
  return known[static_cast<size_t>(Knowledge::kMeasured)] + known[static_cast<size_t>(Knowledge::kInterpolated)];
}

// Returns the budget of a rank on a machine with these GPUs: the memory of one, less what CUDA and its libraries take.
DefaultBudget BudgetOn(const proto::MachineProfile& machine);

// Returns the bytes of one rank's part of a checkpoint.
int64_t CheckpointBytes(const Job& job, const JobPlan& plan);

// What takes time between the steps of a run, predicted. What is 0 is not known, or the job does not have it.
struct PauseTimes {
  double evaluation_seconds = 0;  // Of one evaluation, if each source has as many sequences as the job evaluates.
  // Of one save: how long training waits, and how long the disk writes. A save from a snapshot writes while training
  // goes on; any other one makes it wait.
  double save_seconds = 0, write_seconds = 0;
};
PauseTimes PredictPauses(const Job& job, const JobPlan& plan, const proto::MachineProfile& machine,
                         const RankPlaces& places = {});

// Predicts a step of a planned job.
inline Prediction PredictStep(const Job& job, const JobPlan& plan, const proto::MachineProfile& machine,
                              const RankPlaces& places = {}) {
  return Predict(plan.train.step.program, StepFactsOf(job, plan, machine, places), machine);
}

}  // namespace shale
