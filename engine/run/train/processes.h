// What the processes of a job tell each other: before they plan and allocate, so that all of them plan the same, and
// after each step.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/compile/memory/machine.h"
#include "engine/run/train/step_contract.h"
#include "sharding/comm/control_plane.h"

namespace shale {

// Returns `mine` with the smallest default budget of all processes' machines, each for a host of `ranks_on_host` of the
// job's `ranks` ranks. Every process makes the same call. With one process, returns `mine`. An error of a default
// budget becomes that of the result's, because a job may set its own.
absl::StatusOr<Machine> MachineOfAll(Machine mine, int64_t ranks, int64_t ranks_on_host, ControlPlane& control);

// Returns the process of each of the job's `ranks` ranks. `mine` are those of this process; with one process it may be
// empty. Every process makes the same call. Returns InvalidArgument in all processes if a rank is held by none or two.
absl::StatusOr<std::vector<int>> ProcessOfEachRank(const std::vector<int>& mine, int64_t ranks, ControlPlane& control);

struct StepNote {
  bool stop = false;         // The process was asked to stop.
  bool wants_trace = false;  // It wants the next step to be traced (StepContract::WantsTrace).
  int64_t peak_bytes = 0;    // The largest measured peak of its ranks.
  double flops = 0;          // Of the attention in the documents that its ranks have read (StepFlops::OfDocuments).
  // How long each of its ranks has waited in the step (BlockedNs).
  std::vector<std::pair<int64_t, int64_t>> waited_ns;  // Rank and time.
  // Those of the process's rank that worked longest, if the step was traced because some process wanted it.
  RankTimes longest;
};

std::string Serialize(const StepNote& note);
// Returns Internal if `message` is no note.
absl::StatusOr<StepNote> ParseStepNote(absl::string_view message);

}  // namespace shale
