// JobQueue: the jobs of the service. Starts them in order as the budget allows, and ends them when clients ask for it.
//
//   Submit -> QUEUED -> RUNNING -> FINISHED or FAILED
//               ^          |          |
//               |       Preempt       |          Cancel leads from everywhere to CANCELLED, but from FINISHED.
//               |          v          |
//               +-Resume- PREEMPTED   |
//               +-Resume--------------+ (only FAILED)
//
// A job that runs is recorded as QUEUED. So after a crash of the service every job that ran waits in the queue, at its
// former place, and goes on from its newest checkpoint. What a client asked for is on disk before it is done.
//
// A job that runs holds its threads and bytes of the budget, every other job only its files.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/examples/service/admission.h"
#include "tools/examples/service/job_folders.h"
#include "tools/examples/service/job_log.h"
#include "tools/examples/service/job_runner.h"
#include "tools/examples/service/service.pb.h"

namespace service {

// How much clients may ask for, besides what the budget holds.
struct Limits {
  int64_t jobs = 1000;    // Jobs in the folder, ended ones too: each keeps its files, and its loss curve in memory.
  int64_t watchers = 64;  // Calls of Watch at a time: each holds a thread.
};

// Any thread may call its functions. service.proto says what those do that bear the names of calls.
class JobQueue {
 public:
  // Reads the jobs in `folder`, and starts those that wait. Relative paths in jobs start at `data_folder`.
  // The folder may have more jobs than `limits`, which then takes no further ones.
  static absl::StatusOr<std::unique_ptr<JobQueue>> Open(const std::string& folder, const std::string& data_folder,
                                                        const Budget& budget, const Limits& limits);
  // Waits until every job that runs has saved a checkpoint. The next service goes on with these jobs.
  ~JobQueue();

  absl::StatusOr<JobStatus> Submit(absl::string_view job, const std::string& id);
  std::vector<JobStatus> List();
  absl::StatusOr<JobStatus> Cancel(const std::string& id);
  absl::StatusOr<JobStatus> Preempt(const std::string& id);
  absl::StatusOr<JobStatus> Resume(const std::string& id);
  // Calls `emit` on the caller's thread. Returns when the job has ended, and Cancelled soon after `is_wanted` or `emit`
  // has returned false.
  absl::Status Watch(const std::string& id, int64_t position, absl::FunctionRef<bool()> is_wanted,
                     absl::FunctionRef<bool(const WatchEvent&)> emit);
  // Returns the loss curve of a job (JobLog::Curve).
  absl::StatusOr<std::vector<LossPoint>> Curve(const std::string& id, size_t most);

  // Makes every call that waits return Unavailable, and starts no more jobs.
  void BeginToEnd();

 private:
  struct Job {
    JobStatus recorded;
    std::unique_ptr<JobLog> log;
    std::unique_ptr<JobRunner> runner;  // Not null while it runs.
    int64_t runs = 0;                   // How often it was started.
  };

  JobQueue(JobFolders folders, std::string data_folder, const Budget& budget, const Limits& limits)
      : folders_(std::move(folders)), data_folder_(std::move(data_folder)), budget_(budget), limits_(limits) {}
  // All but Schedule, which is the scheduler's thread, and WatchToEnd are called with mutex_ held.
  void Schedule();
  void StartWhatFits();
  void End(Job& job);
  void Changed();
  absl::Status Add(JobStatus status);
  absl::StatusOr<Job*> Find(const std::string& id);
  // Sets the recorded state, on disk first. After an error the former state stands.
  absl::Status Record(Job& job, JobStatus::State state);
  // Sets the state of a job that ended by itself, even if it cannot be written. The next service then finds the job in
  // the queue, and takes it to the same end once more.
  void RecordEnd(Job& job, JobStatus::State state, const absl::Status& why);
  // Watches a job until it ends, or nobody wants to know any more. Called without mutex_.
  absl::Status WatchToEnd(const Job& job, int64_t position, absl::FunctionRef<bool()> is_wanted,
                          absl::FunctionRef<bool(const WatchEvent&)> emit);
  absl::StatusOr<JobStatus> Stop(Job& job, JobStatus::State wanted, std::unique_lock<std::mutex>& lock);
  static JobStatus StatusOf(const Job& job);
  std::vector<Job*> InOrder();

  const JobFolders folders_;
  const std::string data_folder_;
  const Budget budget_;
  const Limits limits_;
  std::mutex admission_mutex_;  // One job is planned at a time, because planning may take much memory.
  std::mutex mutex_;            // Guards what follows, but for the logs, which never go away.
  std::condition_variable changed_;
  bool must_schedule_ = false;
  bool ending_ = false;
  int64_t watchers_ = 0;
  std::vector<std::string> ended_;   // Jobs whose runners have called on_end.
  std::map<std::string, Job> jobs_;  // By id. None is ever removed.
  int64_t next_place_ = 1;
  std::thread scheduler_;  // Starts and destroys all runners.
};

}  // namespace service
