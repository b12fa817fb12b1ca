// JobLog: what the trainer of a job reported, as lines of JSON in a file, with its loss curve in memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/shale.h"

namespace service {

struct LossPoint {
  int64_t step = 0;
  double loss = 0;
};

// Any thread may call it. The trainer's thread writes the lines itself: they go to a local file, so no EventQueue,
// which may drop events, stands between.
class JobLog : public shale::EventSink {
 public:
  // Opens the file, or creates it, and reads the curve of an earlier process from it. Calls `on_event` after each
  // event.
  static absl::StatusOr<std::unique_ptr<JobLog>> Open(const std::string& path, std::function<void()> on_event);

  void Take(const shale::RunEvent& event) override;

  // Returns every n-th point of the curve and the last one: at most `most` + 1 of them.
  std::vector<LossPoint> Curve(size_t most) const;
  int64_t total_steps() const;  // 0 before the job is planned for its first run.
  // Returns some of the lines that follow the first `position` bytes of the file, each with its end of line; empty if
  // there are none yet. Returns InvalidArgument if no line ends at `position`.
  absl::StatusOr<std::string> ReadLines(int64_t position) const;

 private:
  JobLog(std::string path, std::function<void()> on_event) : path_(std::move(path)), on_event_(std::move(on_event)) {}
  void Add(LossPoint point);

  const std::string path_;
  const std::function<void()> on_event_;
  std::unique_ptr<shale::EventWriter> writer_;  // Only Take uses it.
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<LossPoint> curve_;  // Ascending by step.
  int64_t total_steps_ = 0;
};

}  // namespace service
