#include "tools/examples/service/job_queue.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace service {
namespace {

constexpr std::chrono::milliseconds kLookInterval(200);  // How often Watch looks whether it is still wanted.
constexpr size_t kMostIdBytes = 64;

absl::Status CheckId(const std::string& id) {
  const auto allowed = [](char c) { return absl::ascii_isalnum(c) || c == '-' || c == '_'; };
  if (id.size() <= kMostIdBytes && std::all_of(id.begin(), id.end(), allowed) && id != "lock") return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("id: found \"", id, "\"; give up to ", kMostIdBytes,
                                                 " letters, digits, '-' and '_' (but not \"lock\"), or none"));
}

bool IsFinal(JobStatus::State state) {
  return state == JobStatus::FINISHED || state == JobStatus::FAILED || state == JobStatus::CANCELLED;
}

absl::Status Ending() { return absl::UnavailableError("the service ends; call again when it is back"); }

absl::Status WrongState(const JobStatus& job, absl::string_view allowed) {
  return absl::FailedPreconditionError(absl::StrCat("job ", job.id(), " is ", JobStatus::State_Name(job.state()),
                                                    "; this call is for jobs that are ", allowed));
}

}  // namespace

absl::StatusOr<std::unique_ptr<JobQueue>> JobQueue::Open(const std::string& folder, const std::string& data_folder,
                                                         const Budget& budget, const Limits& limits) {
  SHALE_ASSIGN_OR_RETURN(JobFolders folders, JobFolders::Open(folder));
  SHALE_ASSIGN_OR_RETURN(const std::vector<JobStatus> recorded, folders.Load());
  std::unique_ptr<JobQueue> queue(new JobQueue(std::move(folders), data_folder, budget, limits));
  for (const JobStatus& status : recorded) SHALE_RETURN_IF_ERROR(queue->Add(status));
  queue->scheduler_ = std::thread([queue = queue.get()] { queue->Schedule(); });
  return queue;
}

JobQueue::~JobQueue() {
  BeginToEnd();
  if (scheduler_.joinable()) scheduler_.join();
}

void JobQueue::BeginToEnd() {
  const std::lock_guard lock(mutex_);
  ending_ = true;
  Changed();
}

absl::StatusOr<JobStatus> JobQueue::Submit(absl::string_view job, const std::string& id) {
  SHALE_RETURN_IF_ERROR(CheckId(id));
  const std::lock_guard one_at_a_time(admission_mutex_);
  SHALE_ASSIGN_OR_RETURN(const AdmittedJob admitted, AdmitJob(job, data_folder_, budget_));

  const std::lock_guard lock(mutex_);
  if (ending_) return Ending();
  if (const auto found = jobs_.find(id); found != jobs_.end()) {
    SHALE_ASSIGN_OR_RETURN(const std::string text, ReadText(folders_.JobPath(id)));
    if (text == admitted.job_text) return StatusOf(found->second);
    return absl::AlreadyExistsError(
        absl::StrCat("there is a job \"", id, "\" with other settings; choose another id, or none"));
  }
  if (std::ssize(jobs_) >= limits_.jobs) {
    return absl::ResourceExhaustedError(absl::StrCat("the service has ", jobs_.size(), " jobs, and keeps at most ",
                                                     limits_.jobs,
                                                     " with those that have ended (--most_jobs); end it, move folders "
                                                     "of ended jobs elsewhere, and start it again"));
  }
  JobStatus status;
  status.set_id(id);
  for (int64_t number = next_place_; status.id().empty() || jobs_.count(status.id()) > 0; ++number) {
    status.set_id(absl::StrCat("job-", number));
  }
  status.set_state(JobStatus::QUEUED);
  status.set_plan(admitted.plan);
  status.set_threads(admitted.threads);
  status.set_bytes(admitted.bytes);
  status.set_place(next_place_);
  SHALE_RETURN_IF_ERROR(folders_.Add(status, admitted.job_text));
  SHALE_RETURN_IF_ERROR(Add(status));
  Changed();
  return StatusOf(jobs_.at(status.id()));
}

std::vector<JobStatus> JobQueue::List() {
  const std::lock_guard lock(mutex_);
  std::vector<JobStatus> list;
  for (const Job* job : InOrder()) list.push_back(StatusOf(*job));
  return list;
}

absl::StatusOr<JobStatus> JobQueue::Cancel(const std::string& id) {
  std::unique_lock lock(mutex_);
  SHALE_ASSIGN_OR_RETURN(Job* const job, Find(id));
  if (job->recorded.state() == JobStatus::FINISHED) return WrongState(StatusOf(*job), "not finished");
  return Stop(*job, JobStatus::CANCELLED, lock);
}

absl::StatusOr<JobStatus> JobQueue::Preempt(const std::string& id) {
  std::unique_lock lock(mutex_);
  SHALE_ASSIGN_OR_RETURN(Job* const job, Find(id));
  const JobStatus::State state = job->recorded.state();
  if (state != JobStatus::QUEUED && state != JobStatus::PREEMPTED) {
    return WrongState(StatusOf(*job), "queued or running");
  }
  return Stop(*job, JobStatus::PREEMPTED, lock);
}

absl::StatusOr<JobStatus> JobQueue::Resume(const std::string& id) {
  const std::lock_guard lock(mutex_);
  SHALE_ASSIGN_OR_RETURN(Job* const job, Find(id));
  const JobStatus::State state = job->recorded.state();
  if (state != JobStatus::PREEMPTED && state != JobStatus::FAILED) {
    return WrongState(StatusOf(*job), "preempted or failed");
  }
  SHALE_RETURN_IF_ERROR(Record(*job, JobStatus::QUEUED));
  return StatusOf(*job);
}

absl::Status JobQueue::Watch(const std::string& id, int64_t position, absl::FunctionRef<bool()> is_wanted,
                             absl::FunctionRef<bool(const WatchEvent&)> emit) {
  std::unique_lock lock(mutex_);
  SHALE_ASSIGN_OR_RETURN(const Job* const job, Find(id));
  if (watchers_ >= limits_.watchers) {
    return absl::ResourceExhaustedError(absl::StrCat("jobs are watched by ", watchers_,
                                                     " calls, and no more may be (--most_watchers); try again later, "
                                                     "or call List"));
  }
  ++watchers_;
  lock.unlock();
  const absl::Status status = WatchToEnd(*job, position, is_wanted, emit);
  lock.lock();
  --watchers_;
  return status;
}

absl::Status JobQueue::WatchToEnd(const Job& job, int64_t position, absl::FunctionRef<bool()> is_wanted,
                                  absl::FunctionRef<bool(const WatchEvent&)> emit) {
  JobStatus::State told = JobStatus::STATE_UNSPECIFIED;
  std::unique_lock lock(mutex_);
  while (true) {
    if (ending_) return Ending();
    // Read before the lines, so that the event that says that a job has ended follows all of them.
    const JobStatus status = StatusOf(job);
    lock.unlock();
    SHALE_ASSIGN_OR_RETURN(const std::string lines, job.log->ReadLines(position));
    WatchEvent event;
    event.set_position(position);
    if (status.state() != told && (lines.empty() || !IsFinal(status.state()))) {
      told = status.state();
      *event.mutable_status() = status;
      if (!emit(event)) return absl::CancelledError("the caller has gone away");
    }
    for (absl::string_view line : absl::StrSplit(lines, '\n', absl::SkipEmpty())) {
      position += static_cast<int64_t>(line.size()) + 1;
      event.set_report(std::string(line));
      event.set_position(position);
      if (!emit(event)) return absl::CancelledError("the caller has gone away");
    }
    if (IsFinal(told)) return absl::OkStatus();
    if (!is_wanted()) return absl::CancelledError("the caller has gone away");
    lock.lock();
    if (lines.empty()) changed_.wait_for(lock, kLookInterval);
  }
}

absl::StatusOr<std::vector<LossPoint>> JobQueue::Curve(const std::string& id, size_t most) {
  const std::lock_guard lock(mutex_);
  SHALE_ASSIGN_OR_RETURN(const Job* const job, Find(id));
  return job->log->Curve(most);
}

void JobQueue::Schedule() {
  std::unique_lock lock(mutex_);
  while (true) {
    must_schedule_ = false;
    for (const std::string& id : std::exchange(ended_, {})) End(jobs_.at(id));
    if (!ending_) StartWhatFits();
    bool any_runs = false;
    for (auto& [id, job] : jobs_) {
      any_runs |= job.runner != nullptr;
      if (ending_ && job.runner != nullptr) job.runner->RequestStop();
    }
    if (ending_ && !any_runs) return;
    changed_.wait(lock, [this] { return must_schedule_; });
  }
}

void JobQueue::StartWhatFits() {
  Budget left = budget_;
  for (const auto& [id, job] : jobs_) {
    if (job.runner == nullptr) continue;
    left.threads -= job.recorded.threads();
    left.bytes -= job.recorded.bytes();
  }
  for (Job* job : InOrder()) {
    const JobStatus& status = job->recorded;
    if (status.state() != JobStatus::QUEUED || job->runner != nullptr) continue;
    // A former service may have had more.
    if (const absl::Status alone = CheckBudget(status.threads(), status.bytes(), budget_); !alone.ok()) {
      RecordEnd(*job, JobStatus::FAILED, alone);
      continue;
    }
    // Later jobs wait too, so that a large job gets its turn.
    if (status.threads() > left.threads || status.bytes() > left.bytes) return;
    left.threads -= status.threads();
    left.bytes -= status.bytes();
    const std::string& id = status.id();
    ++job->runs;
    job->runner =
        std::make_unique<JobRunner>(folders_.JobPath(id), folders_.CheckpointsPath(id), job->log.get(), [this, id] {
          const std::lock_guard lock(mutex_);
          ended_.push_back(id);
          Changed();
        });
    changed_.notify_all();
  }
}

void JobQueue::End(Job& job) {
  const std::unique_ptr<JobRunner> runner = std::move(job.runner);
  // A job that was stopped on request has the state that was asked for.
  if (job.recorded.state() != JobStatus::CANCELLED && !runner->status().ok()) {
    RecordEnd(job, JobStatus::FAILED, runner->status());
  } else if (job.recorded.state() != JobStatus::CANCELLED && runner->finished()) {
    RecordEnd(job, JobStatus::FINISHED, absl::OkStatus());
  }
  Changed();
}

void JobQueue::Changed() {
  must_schedule_ = true;
  changed_.notify_all();
}

absl::Status JobQueue::Add(JobStatus status) {
  SHALE_ASSIGN_OR_RETURN(std::unique_ptr<JobLog> log,
                         JobLog::Open(folders_.EventsPath(status.id()), [this] { changed_.notify_all(); }));
  next_place_ = std::max(next_place_, status.place() + 1);
  const std::string id = status.id();
  jobs_[id] = {.recorded = std::move(status), .log = std::move(log)};
  return absl::OkStatus();
}

absl::StatusOr<JobQueue::Job*> JobQueue::Find(const std::string& id) {
  const auto found = jobs_.find(id);
  if (found != jobs_.end()) return &found->second;
  return absl::NotFoundError(absl::StrCat("there is no job \"", id, "\"; List names those that exist"));
}

absl::Status JobQueue::Record(Job& job, JobStatus::State state) {
  JobStatus next = job.recorded;
  next.set_state(state);
  next.clear_error();
  if (state == JobStatus::QUEUED) next.set_place(next_place_++);
  SHALE_RETURN_IF_ERROR(folders_.SetStatus(next));
  job.recorded = std::move(next);
  Changed();
  return absl::OkStatus();
}

void JobQueue::RecordEnd(Job& job, JobStatus::State state, const absl::Status& why) {
  job.recorded.set_state(state);
  job.recorded.set_error(std::string(why.message()));
  if (const absl::Status status = folders_.SetStatus(job.recorded); !status.ok()) {
    std::fprintf(stderr, "service: %s\n", std::string(status.message()).c_str());
  }
  Changed();
}

absl::StatusOr<JobStatus> JobQueue::Stop(Job& job, JobStatus::State wanted, std::unique_lock<std::mutex>& lock) {
  SHALE_RETURN_IF_ERROR(Record(job, wanted));
  if (job.runner != nullptr) job.runner->RequestStop();
  const int64_t run = job.runs;
  // Another client may resume the job at once: then it is the next run that holds the budget.
  const auto stopped = [&] { return job.runner == nullptr || job.runs != run; };
  changed_.wait(lock, [&] { return ending_ || stopped(); });
  if (!stopped()) return Ending();
  return StatusOf(job);
}

JobStatus JobQueue::StatusOf(const Job& job) {
  JobStatus status = job.recorded;
  if (job.runner != nullptr) status.set_state(JobStatus::RUNNING);
  status.set_total_steps(job.log->total_steps());
  if (const std::vector<LossPoint> ends = job.log->Curve(1); !ends.empty()) {
    status.set_steps_done(ends.back().step);
    status.set_loss(ends.back().loss);
  }
  return status;
}

std::vector<JobQueue::Job*> JobQueue::InOrder() {
  std::vector<Job*> jobs;
  for (auto& [id, job] : jobs_) jobs.push_back(&job);
  std::sort(jobs.begin(), jobs.end(), [](Job* a, Job* b) { return a->recorded.place() < b->recorded.place(); });
  return jobs;
}

}  // namespace service
