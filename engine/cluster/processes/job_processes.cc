#include "engine/api/job_processes.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/api/backend.h"
#include "engine/api/job.h"
#include "engine/cluster/launch/joined_processes.h"
#include "engine/files/io/checksums.h"
#include "engine/files/io/file.h"
#include "engine/files/io/json_lines.h"
#include "engine/run/runtime/backend.h"
#include "kernels/check.h"
#include "kernels/hardware_threads.h"
#include "sharding/comm/gloo/gloo.h"
#include "sharding/comm/store.h"

namespace shale {
namespace {

constexpr ControlChannel kChannel = ControlChannel::kSteps;
// How long this process may go on after the job has failed in another one: by itself, and before it has a trainer.
// Nothing interrupts planning and connecting, and there is nothing to report yet.
constexpr std::chrono::milliseconds kTimeToEnd(2000), kTimeToEndStart(500), kPause(20);

// Returns what distinguishes this program from other builds: the CRC of its file.
std::string Build() {
  constexpr int64_t kMostBytes = int64_t{4} << 30;
  const absl::StatusOr<std::string> program = ReadFile("/proc/self/exe", kMostBytes);
  return program.ok() ? absl::StrCat(program->size(), " bytes, CRC ", Crc32c(*program)) : "unknown";
}

// Returns a factory of groups over Gloo for process `process`, which the others reach at `address`. `report` is that of
// GlooOptions, but gets a line for the first group only. Borrows the store.
GroupFactory GlooGroups(Store& store, int process, std::string address,
                        std::function<void(const std::string& line)> report) {
  GlooOptions options = {.address = std::move(address)};
  options.report = [report = std::move(report), said = std::make_shared<std::once_flag>()](const std::string& line) {
    std::call_once(*said, report, line);
  };
  return [&store, process, options = std::move(options)](const GroupMembers& group) {
    return CreateGlooGroup(store, {.name = group.name, .process = process, .process_of_rank = group.processes},
                           options);
  };
}

absl::StatusOr<std::unique_ptr<JoinedProcesses>> JoinProcesses(const Job& job) {
  const Variables variables = EnvironmentVariables();
  SHALE_ASSIGN_OR_RETURN(const ProcessPlace place, FindProcessPlace(variables));
  Facts facts;
  if (place.processes > 1) facts = {{"build", Build()}, {"sharding.ranks", absl::StrCat(job.sharding.ranks)}};
  return JoinedProcesses::Join(variables, job.sharding.ranks, std::move(facts));
}

// Gives every rank an equal share of the threads of the smallest host, if the job leaves that open.
absl::Status DecideThreads(JoinedProcesses& joined, Job& job) {
  if (job.runtime.threads_per_rank > 0) return absl::OkStatus();
  SHALE_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                         joined.control().Gather(kChannel, absl::StrCat(HardwareThreads())));
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const std::string& threads : all) {
    int64_t number = 0;
    if (!absl::SimpleAtoi(threads, &number)) return absl::InternalError("a process sent no number of threads");
    least = std::min(least, number);
  }
  job.runtime.threads_per_rank = ThreadsPerRank(job.runtime, joined.ranks_on_host(), least);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LaunchedProcess> FindLaunchedProcess() {
  SHALE_ASSIGN_OR_RETURN(const ProcessPlace place, FindProcessPlace(EnvironmentVariables()));
  return LaunchedProcess{.launcher = place.launcher, .process = place.process, .processes = place.processes};
}

void WriteErrorFile(const absl::Status& error) {
  const char* const path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr || *path == 0) return;
  JsonObject extra, message, file;
  extra.Add("py_callstack", "").Add("timestamp", absl::StrCat(std::time(nullptr)));
  message.Add("message", error.ToString()).Add("extraInfo", extra);
  WriteFileDurably(path, file.Add("message", message).ToString()).IgnoreError();
}

// What the threads that hear of a failure share with this object, which they may outlive.
struct JobProcesses::Watch {
  std::shared_mutex mutex;  // Guards the next three fields. Held shared, it keeps the trainer alive.
  bool starts = true;       // There has been neither a trainer nor an end. Until then the joined processes exist.
  Trainer* trainer = nullptr;
  absl::Status why;  // The failure, if it has come.
};

absl::StatusOr<std::unique_ptr<JobProcesses>> JobProcesses::Join(const Job& job, JobProcessesOptions options) {
  PrepareEnvironment(job);  // Before the threads that connect the processes.
  absl::StatusOr<std::unique_ptr<JoinedProcesses>> joined = JoinProcesses(job);
  if (!joined.ok()) {
    const bool elsewhere = absl::IsAborted(joined.status()) || absl::IsDeadlineExceeded(joined.status());
    if (!elsewhere) WriteErrorFile(joined.status());
    return joined.status();
  }
  std::unique_ptr<JobProcesses> processes(new JobProcesses(*std::move(joined), std::move(options)));
  processes->WatchOthers();
  return processes;
}

void JobProcesses::Decline(const absl::Status& error) {
  WriteErrorFile(error);
  JoinedProcesses::Decline(EnvironmentVariables(), error);
}

JobProcesses::JobProcesses(std::unique_ptr<JoinedProcesses> joined, JobProcessesOptions options)
    : joined_(std::move(joined)), options_(std::move(options)), watch_(std::make_shared<Watch>()) {}

JobProcesses::~JobProcesses() {
  if (!ended_) End(absl::CancelledError("the program gave the job up")).IgnoreError();
}

std::string JobProcesses::Describe() const {
  const ProcessPlace& place = joined_->place();
  return place.launched() || !place.note.empty() ? place.Describe() : "";
}

int JobProcesses::process() const { return joined_->place().process; }
int JobProcesses::processes() const { return joined_->place().processes; }
bool JobProcesses::failed_elsewhere() const { return joined_->failed_elsewhere(); }

absl::StatusOr<std::string> JobProcesses::InProcessZero(absl::FunctionRef<absl::StatusOr<std::string>()> work) {
  return joined_->InProcessZero(work);
}

// Lets the failure of the job in another process abort the trainer.
void JobProcesses::WatchOthers() {
  joined_->OnFailure([watch = watch_, end_process = options_.end_process, &joined = *joined_](const absl::Status& why) {
    const bool elsewhere = joined.failed_elsewhere();
    if (end_process) {
      std::thread([watch, &joined, why, elsewhere, end_process] {
        const auto end = std::chrono::steady_clock::now() + kTimeToEnd;
        std::this_thread::sleep_for(kTimeToEndStart);
        std::unique_lock lock(watch->mutex, std::defer_lock);  // Waits for nobody: the process must end in time.
        while (std::chrono::steady_clock::now() < end) {
          if (elsewhere && lock.try_lock()) {
            if (watch->starts && !joined.needed()) break;  // Keeps the lock, so that only this thread says why.
            lock.unlock();
          }
          std::this_thread::sleep_for(kPause);
        }
        end_process(why, elsewhere);
      }).detach();
    }
    {
      std::lock_guard lock(watch->mutex);
      watch->why = why;
    }
    // Files take time, and so does an abort that a stopped process does not answer. The trainer lives until both are
    // done.
    std::thread([watch, why] {
      std::shared_lock lock(watch->mutex);
      if (watch->trainer != nullptr) watch->trainer->ReportFailure(why).IgnoreError();
    }).detach();
    std::shared_lock lock(watch->mutex);
    if (watch->trainer != nullptr) watch->trainer->Abort(why);
  });
}

void JobProcesses::SetTrainer(Trainer* trainer) {
  std::lock_guard lock(watch_->mutex);
  watch_->starts = false;
  watch_->trainer = trainer;
  if (trainer != nullptr && !watch_->why.ok()) trainer->Abort(watch_->why);
}

absl::Status JobProcesses::CheckSame(const Job& job) {
  if (alone()) return absl::OkStatus();
  return CheckSameEverywhere(joined_->control(), kChannel, "the job", ResolvedJobText(job));
}

absl::Status JobProcesses::Prepare(Job& job, TrainerOptions& options) {
  if (alone()) return absl::OkStatus();
  SHALE_RETURN_IF_ERROR(DecideThreads(*joined_, job));
  options.ranks = joined_->ranks();
  options.control = &joined_->control();
  options.ranks_on_host = joined_->ranks_on_host();
  if (job.runtime.device == DeviceType::kCpu) {
    const auto report = [leads = leads(), report = options_.report](const std::string& line) {
      if (leads && report) report(line);
    };
    options.create_spanning_group = GlooGroups(joined_->store(), process(), joined_->address(), report);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Backend>> JobProcesses::CreateBackend(const Job& job) {
  BackendPlace place;
  if (!alone()) {
    place = {.store = &joined_->store(),
             .share = {.ranks = std::ssize(joined_->ranks()),
                       .ranks_before = joined_->ranks_before_here(),
                       .ranks_on_host = joined_->ranks_here()}};
  }
  absl::StatusOr<std::unique_ptr<Backend>> backend = CreateBackendOfProcess(job, place);
  SHALE_RETURN_IF_ERROR(AgreeOnStatus(joined_->control(), kChannel, backend.status()));
  return backend;
}

absl::StatusOr<std::unique_ptr<Trainer>> JobProcesses::CreateWatched(const Job& job, const TrainerOptions& options) {
  SHALE_ASSIGN_OR_RETURN(std::unique_ptr<Trainer> trainer, Trainer::Create(job, options));
  SetTrainer(trainer.get());
  return trainer;
}

absl::StatusOr<std::unique_ptr<Trainer>> JobProcesses::CreateTrainer(Job job, TrainerOptions options) {
  SHALE_RETURN_IF_ERROR(CheckSame(job));
  SHALE_RETURN_IF_ERROR(Prepare(job, options));
  std::unique_ptr<Backend> backend;
  if (options.backend == nullptr) {
    SHALE_ASSIGN_OR_RETURN(backend, CreateBackend(job));
    options.backend = backend.get();
  }
  return CreateWatched(job, options);
}

absl::Status JobProcesses::End(const absl::Status& result) {
  ended_ = true;
  absl::Status error = result;
  if (error.ok()) error = joined_->Leave();
  Trainer* trainer = nullptr;
  {
    std::lock_guard lock(watch_->mutex);
    watch_->starts = false;
    trainer = std::exchange(watch_->trainer, nullptr);
  }
  if (error.ok()) return error;
  const absl::Status why = joined_->Fail(error);
  if (!failed_elsewhere()) {
    WriteErrorFile(why);
  } else if (trainer != nullptr) {
    // A call of the control plane may have returned the failure before the watch told of it.
    trainer->ReportFailure(why).IgnoreError();
  }
  return why;
}

}  // namespace shale
