// StepContract: compares the steps of a run with what was predicted of them, and finds what is slower.
//
// RankTimes: what one rank did in a step that was traced ([Note: times of a step] in engine/run/runtime/executor.h),
// which tells what is slower.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>

#include "absl/types/span.h"
#include "engine/compile/program/program.h"
#include "engine/plan/config/job.h"
#include "engine/plan/planner/job_plan.h"
#include "engine/plan/planner/step_facts.h"
#include "engine/plan/time/prediction.h"
#include "engine/plan/time/rates.h"
#include "engine/plan/time/work.h"
#include "engine/run/runtime/executor.h"
#include "proto/machine.pb.h"
#include "sharding/mesh.h"

namespace shale {

// Returns what reports call the kind of a work, "MatMul f32 f32 f32 (stream compute)".
std::string KindText(const Work& work, StreamId stream);
// What reports call the time in which a rank runs no instruction: before and after the program of a step, and in it.
inline constexpr char kBetweenSteps[] = "what lies between steps";
inline constexpr char kBetweenInstructions[] = "what lies between instructions";

// What a rank did in a step that was traced. Processes send it to each other.
struct RankTimes {
  int64_t rank = -1;  // -1: no step was traced.
  // The step without the time in which the rank may have waited for others: while it ran collectives alone.
  double own_seconds = 0;
  std::map<std::string, double> seconds;  // By KindText, kBetweenSteps and kBetweenInstructions.
};
// Returns what a rank did in a step that took `seconds`, from its times in issue order. Without times there is no rank.
RankTimes TimesOfRank(const StepProgram& program, const Mesh& mesh, int64_t rank,
                      absl::Span<const InstructionTime> times, double seconds);

// Borrows the program of the plan. Used by one thread.
class StepContract {
 public:
  static constexpr double kSlower = 0.2;  // Than predicted, as a part of it.
  static constexpr int64_t kSteps = 20;   // In a row.

  // `places`: as in StepFactsOf.
  StepContract(const Job& job, const JobPlan& plan, const proto::MachineProfile& machine, const RankPlaces& places);

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
