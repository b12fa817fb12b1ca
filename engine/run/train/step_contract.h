// StepContract: compares the steps of a run with what was predicted of them, and finds what is slower.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "engine/compile/program/program.h"
#include "engine/plan/config/job.h"
#include "engine/plan/planner/job_plan.h"
#include "engine/plan/planner/step_facts.h"
#include "engine/plan/time/prediction.h"
#include "engine/plan/time/rates.h"
#include "engine/run/runtime/work_times.h"
#include "proto/machine.pb.h"

namespace shale {

// Borrows the program of the plan. Used by one thread.
class StepContract {
 public:
  static constexpr double kSlower = 0.2;  // Than predicted, as a part of it.
  static constexpr int64_t kSteps = 20;   // In a row.

  // `hosts` is how many the ranks lie on; 0: as many as the profile says (StepFactsOf).
  StepContract(const Job& job, const JobPlan& plan, const proto::MachineProfile& machine, int64_t hosts);

  // Returns what a step takes, or 0 if too little of it was measured to hold the run to it.
  double predicted_seconds() const { return covered_ >= kCoveredShare ? prediction_.step_seconds : 0; }
  // Returns what an instruction takes, in the form in which it is issued.
  double SecondsOf(const Instruction& issued);

  // Returns whether the next step should be traced, because a warning may follow it.
  bool WantsTrace() const { return predicted_seconds() > 0 && slow_steps_ == kSteps - 1; }
  // Takes how long a step took. Returns whether steps have just been slower than predicted for kSteps in a row, so that
  // a warning is due. Another one is due only after a step that was not slow.
  bool Add(double seconds);
  // Returns the warning that is due. Says what is slower if the last step was traced: `longest` then has the rank of
  // the job that worked longest in it, for which the others waited.
  std::string Warning(const RankTimes& longest);

  // Returns a line: what was predicted, and the mean of the steps so far, but for the first, which is slower.
  std::string Describe() const;

 private:
  // Returns what takes more time than predicted, "MatMul f32 (stream compute) took 910 ms instead of 620 ms", most
  // first.
  std::string WhatIsSlower(const RankTimes& rank);

  const StepProgram& program_;
  const Prediction prediction_;
  const double between_steps_seconds_;
  const Mesh mesh_;
  const Rates rates_;
  double covered_ = 0;
  std::unordered_map<std::string, double> seconds_of_;  // By WorkText.
  int64_t slow_steps_ = 0, steps_ = 0;
  double seconds_ = 0;  // Of all steps but the first.
};

}  // namespace shale
