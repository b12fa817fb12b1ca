// StateCheck: compares the state of the ranks in the steps that runtime.check_every_steps chooses.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/planner/job_plan.h"
#include "engine/runtime/local_ranks.h"
#include "engine/state/state_digest.h"
#include "sharding/comm/control_plane.h"

namespace shale {

// Borrows what it is given. Used by one thread.
class StateCheck {
 public:
  // `every_steps` is runtime.check_every_steps; 0: nothing is checked. `train` is the program of a step on `ranks`.
  StateCheck(int64_t every_steps, const JobPlan& plan, LocalRanks& ranks, LocalProgram& train, ControlPlane& control)
      : every_steps_(every_steps), plan_(plan), ranks_(ranks), train_(train), control_(control) {}

  // Runs step `step`. If it is checked, the ranks pause before they update, and note what they hold.
  absl::Status RunStep(int64_t step, const std::vector<StepInputs>& inputs);
  // After step `step`: compares the state before and after its update, if the step is checked, or if `always` and
  // anything is. Returns DataLoss, in all processes, if ranks differ (CheckReplicas).
  absl::Status Compare(int64_t step, bool always);
  // Call when a program writes to the state.
  void ForgetState() { left_by_update_.clear(); }

 private:
  bool IsChecked(int64_t step) const { return every_steps_ > 0 && step % every_steps_ == 0; }
  // Sets `digests` to those of the state of the local ranks.
  absl::Status DigestState(Digested what, std::vector<StateDigest>& digests);

  const int64_t every_steps_;
  const JobPlan& plan_;
  LocalRanks& ranks_;
  LocalProgram& train_;
  ControlPlane& control_;
  InstructionId first_update_ = -1;  // The first instruction that writes to the state. -1: not looked for yet.
  // By local rank: what the last update left, if the next step is checked, and what that step found before its update.
  // Empty: not known.
  std::vector<StateDigest> left_by_update_, before_update_;
};

}  // namespace shale
