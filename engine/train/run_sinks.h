// RunSinks: the places outside the process to which a run's events go (telemetry.sinks).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/api/events.h"
#include "engine/config/job.h"

namespace shale {

// Passes every event on to each place through a queue of its own, so that none of them makes the run wait. Events that
// come before Open wait for it.
class RunSinks : public EventSink {
 public:
  explicit RunSinks(const SinksConfig& config);

  // Opens what the job names, relative paths in `run_folder`, and begins to write. Returns the first error; what could
  // not be opened then gets no events.
  absl::Status Open(absl::string_view run_folder);

  void Take(const RunEvent& event) override;

  // Waits until the events are written (EventQueue::Close). Returns a line for each place that missed some, with the
  // reason. No event may come after that.
  std::vector<std::string> Close();

 private:
  struct Place {
    std::string field;  // In the job.
    std::string path;   // As the job gives it.
    absl::StatusOr<std::unique_ptr<EventWriter>> (*open)(const std::string& path);
    std::unique_ptr<EventQueue> queue;
  };

  std::vector<Place> places_;
};

}  // namespace shale
