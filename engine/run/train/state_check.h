// StateCheck: compares the state of the ranks in the steps that runtime.check_every_steps chooses.
//
// CheckReplicas compares checksums: the state changes only by updates, and copies of it on several ranks are equal.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/plan/planner/job_plan.h"
#include "engine/run/runtime/local_ranks.h"
#include "engine/run/state/rank_state.h"
#include "sharding/comm/control_plane.h"
#include "sharding/mesh.h"

namespace shale {

// What a rank held before the update of a step, and holds after it.
struct RankDigest {
  int64_t rank = 0;
  StateDigest state;
  double loss = 0, squared_norm = 0;  // As summed over the ranks: each rank has the sums.
  // Only of steps that are checked.
  std::optional<StateDigest> before;  // Before the update.
  bool changed = false;               // `before` is not what the update of the step before had left.
};

// Convert the digests of a process's ranks into a message, and append those of a message to `digests`. Returns Internal
// if it is not such a message.
std::string SerializeDigests(absl::Span<const RankDigest> digests);
absl::Status ParseDigests(absl::string_view message, std::vector<RankDigest>& digests);

// Returns DataLoss if the state of a rank changed without an update, or if ranks differ in bits in what they should
// hold alike before or after the update of step `step`. The message says in what, and names the ranks: of those that
// should be alike, those that differ from the most others, or all if no more ranks agree than disagree. `ranks` are all
// ranks of the mesh, in any order.
absl::Status CheckReplicas(const Mesh& mesh, int64_t step, std::vector<RankDigest> ranks);

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
