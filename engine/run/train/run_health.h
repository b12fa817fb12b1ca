// RunHealth: whether a run can go on, and who is told if it cannot.
//
// What a process knows of a failed run, in a file that tools/inspect_run merges with those of the other processes.
//
//   {"process": 1, "pid": 17, "host": "a", "unix_seconds": 1.5e9, "step": 7, "held": 6, "saved": 4, "ranks": 4,
//    "shard_ranks": 4, "error": ...}
//   {"rank": 2, "stream": "reduce", "run": 7, "instruction": 20, "name": "ReduceScatterSum", "axis": "shard",
//    "unit": "head", "iteration": 0, "begun": 1.5e9, "finished": 1.5e9}
//
// The first line is about the process: `held` is the step after which its ranks held the state, and is missing if the
// update of the next one may have begun; `saved` is that of the last checkpoint, 0 if there is none. Each other line is
// about an instruction of one of its ranks, stream by stream and in order (InstructionNote). `axis` is there for
// collectives only, `begun` and `finished` if they are known.
//
// UpdateMayHaveBegun tells from a rank's last notes whether the update of a step may have changed its state.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/api/events.h"
#include "engine/run/runtime/local_ranks.h"
#include "engine/run/runtime/rank_runtime.h"
#include "sharding/comm/control_plane.h"

namespace shale {

// Returns the path of the report of a process in a folder of reports.
std::string FailureReportPath(absl::string_view folder, int process);

// Where a run stood when it failed.
struct FailureMoment {
  int64_t step = 0;   // The step that had begun last.
  int64_t done = 0;   // The step that was done last.
  int64_t saved = 0;  // The step of the last checkpoint, as far as the process knows. 0: there is none.
};

// Returns the report of process `process`, whose run failed with `error`. Any thread may call it, also while the ranks
// run.
std::string FailureReport(LocalRanks& ranks, int process, const FailureMoment& moment, const absl::Status& error);

// Returns false if the rank's weights and optimizer state are certainly those from before the run that it began last:
// a collective that the first write to them waits for has not finished. `notes` are those of its InstructionRing.
// Returns true if that cannot be said, as for a rank that has not made a note.
bool UpdateMayHaveBegun(const std::vector<InstructionNote>& notes);

// Used by the thread that uses the trainer, except where a function says otherwise.
//
//   running --a loss or gradient is not finite, with non_finite STOP--> failed: no step may follow
//   running --a program or a save returns an error--> failed and damaged: the state is not that of the last step
//   running --with several processes, this one cannot read its data--> failed and damaged: the others begin the step
class RunHealth {
 public:
  // `events` may be null. `folder` gets the report of a failure; empty: nothing is reported. Borrows the control plane
  // and the events.
  RunHealth(ControlPlane& control, EventSink* events, std::string folder)
      : control_(control), events_(events), folder_(std::move(folder)) {}

  bool failed() const { return failed_; }
  bool damaged() const { return damaged_; }
  void Fail() { failed_ = true; }
  // Notes that the state is damaged, and returns `why`.
  absl::Status Damage(absl::Status why) {
    failed_ = damaged_ = true;
    return why;
  }

  // Steps of the run, with those before the checkpoint that it resumed from: done, begun last, and that of the last
  // checkpoint, 0 if there is none. Any thread may read them.
  struct Steps {
    std::atomic<int64_t> done = 0, begun = 0, saved = 0;
  };
  Steps& steps() { return steps_; }
  const Steps& steps() const { return steps_; }

  // Passes an event on.
  template <class What>
  void Tell(What what) const {
    if (events_ != nullptr) events_->Take({.unix_seconds = UnixSecondsNow(), .what = std::move(what)});
  }
  // Tells of the first failure, and reports it if it damaged the state. Others are its consequences.
  void TellFailure(const absl::Status& status, const char* culprit);

  // Reports from now on what these ranks did. Borrows them.
  void SetRanks(LocalRanks* ranks) { ranks_ = ranks; }
  // See Trainer::ReportFailure. Any thread may call it. REQUIRES: SetRanks was called.
  absl::Status Report(const absl::Status& why);

 private:
  ControlPlane& control_;
  EventSink* const events_;
  const std::string folder_;
  LocalRanks* ranks_ = nullptr;
  Steps steps_;
  std::atomic<bool> reported_ = false;  // A failure has been reported.
  bool failed_ = false, damaged_ = false, told_ = false;
};

}  // namespace shale
