// What the service keeps on disk:
//
//   FOLDER/lock                    locked while a service uses FOLDER
//   FOLDER/ID/job.textproto        the job, with every default decided
//   FOLDER/ID/status.textproto     a JobStatus; its state is what clients asked for, or how the job ended
//   FOLDER/ID/events.jsonl         what the trainer reported (JobLog)
//   FOLDER/ID/checkpoints/         of the trainer
//
// A job appears as a whole, and a status is replaced as a whole, so a crash at any moment leaves a folder that Load
// reads.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/examples/service/service.pb.h"

namespace service {

// Used by one thread at a time, except for the paths and ReadText.
class JobFolders {
 public:
  // Makes the folder if it is missing, and locks it until the object is destroyed. Returns FailedPrecondition if
  // another service uses it.
  static absl::StatusOr<JobFolders> Open(const std::string& folder);
  JobFolders(JobFolders&& other) noexcept;
  JobFolders& operator=(JobFolders&&) = delete;
  ~JobFolders();

  // Returns the recorded status of every job, in the order of the queue. Removes what a crash left half written.
  absl::StatusOr<std::vector<JobStatus>> Load() const;
  // Durable once they return OK. After an error of SetStatus the former status may stand or the new one.
  absl::Status Add(const JobStatus& status, absl::string_view job_text) const;
  absl::Status SetStatus(const JobStatus& status) const;

  std::string JobPath(absl::string_view id) const { return Path(id, "job.textproto"); }
  std::string EventsPath(absl::string_view id) const { return Path(id, "events.jsonl"); }
  std::string CheckpointsPath(absl::string_view id) const { return Path(id, "checkpoints"); }

 private:
  JobFolders(std::string folder, int lock) : folder_(std::move(folder)), lock_(lock) {}
  std::string Path(absl::string_view id, absl::string_view name) const;

  const std::string folder_;
  int lock_;
};

// Returns the contents of a file.
absl::StatusOr<std::string> ReadText(const std::string& path);

}  // namespace service
