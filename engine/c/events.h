// Passes the events of a run to a function or a file descriptor of the program that uses the C interface, and to the
// places that the job names.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/api/events.h"
#include "engine/c/shale.h"
#include "engine/config/job.h"
#include "engine/train/run_sinks.h"

namespace shale::c {

class Events : public EventSink {
 public:
  // Returns InvalidArgument if a path in `sinks` (telemetry.sinks) is relative, because there is no run folder;
  // otherwise the errors of opening what it names.
  static absl::StatusOr<std::unique_ptr<Events>> Create(const shale_trainer_options& options, const SinksConfig& sinks);
  // Waits for the last events, as EventQueue::Close does. Then lost() is complete.
  ~Events() override;
  void Take(const RunEvent& event) override;

  // A line for each place that missed events. May outlive this object.
  std::shared_ptr<const std::vector<std::string>> lost() const { return lost_; }

 private:
  explicit Events(const SinksConfig& sinks) : sinks_(sinks) {}

  std::vector<std::unique_ptr<EventQueue>> queues_;
  RunSinks sinks_;
  const std::shared_ptr<std::vector<std::string>> lost_ = std::make_shared<std::vector<std::string>>();
};

}  // namespace shale::c
