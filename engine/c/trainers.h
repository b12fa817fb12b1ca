// The handles of trainers, and what takes a run's events: a function of the program, and what the job names.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/api/data_source.h"
#include "engine/api/events.h"
#include "engine/api/trainer.h"
#include "engine/c/calls.h"
#include "engine/c/handles.h"
#include "engine/c/shale.h"
#include "engine/plan/config/job.h"
#include "engine/run/runtime/backend.h"
#include "engine/run/train/run.h"
#include "kernels/check.h"

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

// What a handle of a trainer stands for. The trainer is destroyed first, because it borrows the others.
struct KeptTrainer {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<DataSource> data, evaluation_data;
  std::unique_ptr<Events> events;
  std::unique_ptr<Trainer> trainer;
};

Handles<KeptTrainer>& Trainers();

// Calls `body`, a function from a trainer to a Status, with the trainer of a handle.
template <class Body>
shale_code CallWith(shale_trainer handle, shale_error* error, Body&& body) {
  return Call(error, [&]() -> absl::Status {
    SHALE_ASSIGN_OR_RETURN(const auto used, Trainers().Take(handle));
    return body(*used->trainer);
  });
}

}  // namespace shale::c
