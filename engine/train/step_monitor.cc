#include "engine/train/step_monitor.h"

#include <algorithm>

#include "engine/train/step_note.h"
#include "kernels/check.h"

namespace shale {

absl::Status StepMonitor::AfterStep(std::vector<std::pair<int64_t, int64_t>> waited_ns, StepReport& report) {
  const StepNote mine = {.stop = stop_.load(std::memory_order_relaxed),
                         .peak_bytes = report.peak_bytes_measured,
                         .waited_ns = std::move(waited_ns)};
  std::vector<std::string> all = {Serialize(mine)};
  if (control_.processes() > 1) {
    SHALE_ASSIGN_OR_RETURN(all, control_.Gather(ControlChannel::kSteps, std::move(all[0])));
  }
  std::vector<double> waited_seconds(ranks_);
  for (const std::string& message : all) {
    SHALE_ASSIGN_OR_RETURN(const StepNote note, ParseStepNote(message));
    report.peak_bytes_measured = std::max(report.peak_bytes_measured, note.peak_bytes);
    stop_agreed_ = stop_agreed_ || note.stop;
    for (const auto& [rank, rank_waited_ns] : note.waited_ns) {
      if (rank < 0 || rank >= ranks_) return absl::InternalError("a process sent a wrong rank");
      waited_seconds[rank] = static_cast<double>(rank_waited_ns) / 1e9;
    }
  }
  slow_ranks_ = control_.process() == 0 ? stragglers_.Add(report.seconds, waited_seconds) : "";
  warnings_ = doubts_.Add(report);
  return absl::OkStatus();
}

}  // namespace shale
