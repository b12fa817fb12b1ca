// StepMonitor: after each step, the processes tell each other who was asked to stop and how long ranks waited, and all
// look for what makes the run doubtful.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/api/events.h"
#include "engine/train/step_warnings.h"
#include "engine/train/straggler_monitor.h"
#include "sharding/comm/control_plane.h"

namespace shale {

// Used by one thread, except where a function says otherwise.
class StepMonitor {
 public:
  // `ranks` are those of the job. See StepWarnings for the others.
  StepMonitor(int64_t ranks, int64_t vocabulary, bool has_peak, ControlPlane& control)
      : ranks_(ranks), control_(control), doubts_(vocabulary, has_peak) {}

  // Any thread and any signal handler may call it.
  void RequestStop() { stop_.store(true, std::memory_order_relaxed); }
  // Returns whether no further step begins. With several processes, a request takes effect once all know of it.
  bool stopped() const { return control_.processes() == 1 ? stop_.load(std::memory_order_relaxed) : stop_agreed_; }

  // Exchanges with the other processes what the step with this report was like, and sets the largest peak in it.
  // `waited_ns` has for each rank of this process how long it waited in the step (BlockedNs), with its number.
  absl::Status AfterStep(std::vector<std::pair<int64_t, int64_t>> waited_ns, StepReport& report);

  // See TrainerDevices::slow_ranks, Trainer::warnings and StepWarnings::AtEnd.
  const std::string& slow_ranks() const { return slow_ranks_; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  absl::Status AtEnd(int64_t tokens) const { return doubts_.AtEnd(tokens); }

 private:
  const int64_t ranks_;
  ControlPlane& control_;
  std::atomic<bool> stop_ = false;  // This process was asked to stop.
  bool stop_agreed_ = false;        // Some process was, and all know it. Used only with several processes.
  StragglerMonitor stragglers_;
  std::string slow_ranks_;
  StepWarnings doubts_;
  std::vector<std::string> warnings_;
};

}  // namespace shale
