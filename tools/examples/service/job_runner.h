// JobRunner: trains one job on a thread of its own, from its newest checkpoint on if it has one.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "engine/shale.h"

namespace service {

class JobRunner {
 public:
  // Reads the job at `job_path`, saves to `checkpoints`, and reports to `events`, which is borrowed. Calls `on_end`
  // once, as the last thing on the runner's thread.
  JobRunner(std::string job_path, std::string checkpoints, shale::EventSink* events, std::function<void()> on_end);
  ~JobRunner() { thread_.join(); }

  // Makes the job save a checkpoint after its present step, and end. Any thread may call it.
  void RequestStop();

  // After on_end: whether training failed, and whether all steps are done.
  const absl::Status& status() const { return status_; }
  bool finished() const { return finished_; }

 private:
  absl::Status Train();

  const std::string job_path_, checkpoints_;
  shale::EventSink* const events_;
  std::mutex mutex_;
  bool stop_ = false;                  // Guarded by mutex_.
  shale::Trainer* trainer_ = nullptr;  // Guarded by mutex_. Not null while it trains.
  absl::Status status_;
  bool finished_ = false;
  std::thread thread_;  // Last, so that it sees the other members.
};

}  // namespace service
