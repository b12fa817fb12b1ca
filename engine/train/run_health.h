// RunHealth: whether a run can go on, and who is told if it cannot.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "engine/api/events.h"
#include "engine/runtime/local_ranks.h"
#include "sharding/comm/control_plane.h"

namespace shale {

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
