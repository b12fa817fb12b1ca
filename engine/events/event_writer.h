// EventWriter: writes the events of a run somewhere outside the process, and may be slow or fail.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/events/event.h"

namespace shale {

// Used by one thread at a time. After an error, the next call may succeed.
class EventWriter {
 public:
  virtual ~EventWriter() = default;
  virtual absl::Status Write(const RunEvent& event) = 0;
  // Called after Write when no further event waits. A writer may keep what it has until then.
  virtual absl::Status Flush() { return absl::OkStatus(); }
};

// Writes one line of JSON for each event (EventLine) to a file descriptor: a file, a pipe or a socket. Borrows it.
std::unique_ptr<EventWriter> WriteJsonTo(int fd);

// Appends such lines to the file at `path`. Creates it and its folder if they are missing.
absl::StatusOr<std::unique_ptr<EventWriter>> WriteJsonFile(const std::string& path);

// Writes the numbers of steps and evaluations to an event file for TensorBoard in `folder`. Creates the folder if it is
// missing. If a former run wrote there, TensorBoard drops what that run wrote from the first step of this one on.
absl::StatusOr<std::unique_ptr<EventWriter>> WriteTensorBoard(const std::string& folder);

// Keeps the newest numbers in the file at `path`, in Prometheus' text format, for the text file collector of its node
// exporter. Each Flush replaces the file as a whole, so that a reader never sees a part of it. Creates its folder if it
// is missing.
absl::StatusOr<std::unique_ptr<EventWriter>> WritePrometheus(const std::string& path);

}  // namespace shale
