#include "tools/joint_run.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/backends/gloo_groups.h"
#include "engine/backends/job_backend.h"
#include "engine/checkpoint/run_paths.h"
#include "engine/config/print.h"
#include "engine/io/crc32c.h"
#include "engine/io/file.h"
#include "engine/runtime/hardware_threads.h"
#include "engine/runtime/trace.h"
#include "engine/text/quote.h"
#include "engine/text/utf8.h"
#include "kernels/check.h"
#include "tools/command_line.h"
#include "tools/job_manager.h"
#include "tools/resume_flag.h"

namespace shale {
namespace {

constexpr ControlChannel kChannel = ControlChannel::kSteps;
// How long this process may go on after the job has failed in another one: by itself, and before it has a trainer.
// Nothing interrupts planning and connecting, and there is nothing to report yet.
constexpr std::chrono::milliseconds kTimeToEnd(2000), kTimeToEndStart(500), kPause(20);

void Say(const World& world, const absl::Status& why) {
  const std::string process = world.alone() ? "" : absl::StrCat(", process ", world.place().process);
  std::fflush(stdout);
  // Other processes may have written parts of the message.
  std::fprintf(stderr, "train%s: %s\n", process.c_str(), Printable(why.message()).c_str());
}

// Returns what distinguishes this program from other builds: the CRC of its file.
std::string Build() {
  constexpr int64_t kMostBytes = int64_t{4} << 30;
  const absl::StatusOr<std::string> program = ReadFile("/proc/self/exe", kMostBytes);
  return program.ok() ? absl::StrCat(program->size(), " bytes, CRC ", Crc32c(*program)) : "unknown";
}

// Gives every rank an equal share of the threads of the smallest host, if the job leaves that open.
absl::Status DecideThreads(World& world, Job& job) {
  if (world.alone() || job.runtime.threads_per_rank > 0) return absl::OkStatus();
  SHALE_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                         world.control().Gather(kChannel, absl::StrCat(HardwareThreads())));
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const std::string& threads : all) {
    int64_t number = 0;
    if (!absl::SimpleAtoi(threads, &number)) return absl::InternalError("a process sent no number of threads");
    least = std::min(least, number);
  }
  job.runtime.threads_per_rank = ThreadsPerRank(job.runtime, world.ranks_on_host(), least);
  return absl::OkStatus();
}

std::string PartOfTrace(const Job& job, int process) {
  return JoinPath(job.telemetry.run_folder, absl::StrCat(kRunTracePart, process));
}

// Checks that the other processes want to train the same job, as far as can be said before it is planned.
absl::Status CheckJob(World& world, const Job& job) {
  if (world.alone()) return absl::OkStatus();
  return CheckSameEverywhere(world.control(), kChannel, "the job", ResolvedJobText(job));
}

}  // namespace

absl::StatusOr<std::unique_ptr<World>> JoinWorld(const Job& job) {
  const Variables variables = EnvironmentVariables();
  SHALE_ASSIGN_OR_RETURN(const ProcessPlace place, FindProcessPlace(variables));
  Facts facts;
  if (place.processes > 1) facts = {{"build", Build()}, {"sharding.ranks", absl::StrCat(job.sharding.ranks)}};
  return World::Join(variables, job.sharding.ranks, std::move(facts));
}

int JoinExitCode(const absl::Status& error) {
  if (absl::IsAborted(error) || absl::IsDeadlineExceeded(error)) return kExitPeer;
  return absl::IsAlreadyExists(error) ? kExitFailed : StartExitCode(error);  // Another program has the port.
}

int StartExitCode(const absl::Status& error) {
  switch (error.code()) {
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kUnknown: return kExitFailed;
    default: return kExitUsage;
  }
}

absl::StatusOr<Decided> DecideTogether(World& world, const ResumeOptions& resume, Job& job, TrainerOptions& options) {
  SHALE_RETURN_IF_ERROR(CheckJob(world, job));
  Decided decided;
  const auto decide = [&]() -> absl::StatusOr<std::string> {
    // Other tools take the path of the run into jobs, whose text holds no other paths.
    if (!IsLineOfPath(std::filesystem::absolute(job.telemetry.run_folder).string())) {
      return absl::InvalidArgumentError(
          absl::StrCat("the run folder would be ", Quoted(std::filesystem::absolute(job.telemetry.run_folder).string()),
                       "; choose one whose path is one line of UTF-8 text (telemetry.run_folder)"));
    }
    // Claims the folder before anything that takes time, so that an unusable folder is reported at once.
    SHALE_ASSIGN_OR_RETURN(decided.folder, RunFolder::Claim(job.telemetry.run_folder, ExistingFor(resume.from)));
    const std::string hf_folder = HfFolder(job, *decided.folder, resume);
    KeepCpuProducts(*decided.folder, resume, job);
    SHALE_ASSIGN_OR_RETURN(decided.products, DecideCpuProducts(job));
    SHALE_ASSIGN_OR_RETURN(options.failure_folder, decided.folder->NextFailurePath());
    return absl::StrCat(static_cast<int>(job.runtime.cpu_products), "\n", hf_folder, "\n",
                        HfFolderOfRun(*decided.folder, resume), "\n", options.failure_folder);
  };
  SHALE_ASSIGN_OR_RETURN(const std::string text, world.InProcessZero(decide));
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '\n');
  int products = 0;
  if (parts.size() != 4 || !absl::SimpleAtoi(parts[0], &products)) {
    return absl::InternalError("process 0 sent no decision");
  }
  job.runtime.cpu_products = static_cast<CpuProducts>(products);
  decided.hf_folder = std::string(parts[1]);
  // A resumed run has a copy of its tokenizer. The record of the job needs a path that does not depend on its own.
  const std::string copy(parts[2]);
  if (job.data.has_tokenizer() && !std::filesystem::exists(job.data.tokenizer) && !copy.empty()) {
    job.data.tokenizer = std::filesystem::absolute(copy).string();
  }
  options.tokenizer_folder = job.data.has_tokenizer() ? job.data.tokenizer : decided.hf_folder;
  options.failure_folder = std::string(parts[3]);
  options.checkpoint_folder = RunCheckpointsPath(job.telemetry.run_folder);
  SHALE_RETURN_IF_ERROR(world.CheckShared(RunFolder::ProbePath(job.telemetry.run_folder)));
  SHALE_RETURN_IF_ERROR(DecideThreads(world, job));
  if (world.alone()) return decided;
  options.ranks = world.ranks();
  options.control = &world.control();
  options.ranks_on_host = world.ranks_on_host();
  if (job.runtime.device == DeviceType::kCpu) {
    const auto report = [leads = world.leads()](const std::string& line) {
      if (leads) std::fprintf(stderr, "train: %s\n", line.c_str());
    };
    options.create_spanning_group = GlooGroups(world.store(), world.place().process, world.address(), report);
  }
  return decided;
}

std::string TracePath(const World& world, const Job& job, const std::string& path) {
  return path.empty() || world.leads() ? path : PartOfTrace(job, world.place().process);
}

absl::Status JoinTraces(World& world, const Job& job, const std::string& path, bool traced) {
  constexpr int64_t kMostBytes = int64_t{4} << 30;
  if (world.alone() || path.empty()) return absl::OkStatus();
  SHALE_RETURN_IF_ERROR(world.control().Barrier(kChannel));  // All have written theirs.
  if (!world.leads() || !traced) return absl::OkStatus();
  std::vector<std::string> traces(world.place().processes);
  for (int process = 0; process < world.place().processes; ++process) {
    const std::string part = process == 0 ? path : PartOfTrace(job, process);
    SHALE_ASSIGN_OR_RETURN(traces[process], ReadFile(part, kMostBytes));
    if (process > 0) unlink(part.c_str());
  }
  return WriteFileDurably(path, MergeChromeJson(traces));
}

BackendPlace PlaceOfBackend(World& world) {
  if (world.alone()) return {};
  return {.store = &world.store(),
          .share = {.ranks = std::ssize(world.ranks()),
                    .ranks_before = world.ranks_before_here(),
                    .ranks_on_host = world.ranks_here()}};
}

PeerWatch::PeerWatch(World& world) : world_(world) {
  state_->exit_code = kExitFailed;
  world.OnFailure([state = state_, &world](const absl::Status& why) {
    const bool elsewhere = world.failed_elsewhere();
    std::thread([state, &world, why, elsewhere, process = world.place().process] {
      const auto end = std::chrono::steady_clock::now() + kTimeToEnd;
      std::this_thread::sleep_for(kTimeToEndStart);
      std::unique_lock lock(state->mutex, std::defer_lock);  // Waits for nobody: the process must end in time.
      while (std::chrono::steady_clock::now() < end) {
        if (elsewhere && lock.try_lock()) {
          if (state->starts && !world.needed()) break;  // Keeps the lock, so that only this thread says why.
          lock.unlock();
        }
        std::this_thread::sleep_for(kPause);
      }
      if (!state->said) std::fprintf(stderr, "train, process %d: %s\n", process, Printable(why.message()).c_str());
      _exit(elsewhere ? kExitPeer : state->exit_code.load());
    }).detach();
    {
      std::lock_guard lock(state->mutex);
      state->why = why;
    }
    // Files take time, and so does an abort that a stopped process does not answer. The trainer lives until both are
    // done, but the process ends in time whatever happens to them.
    std::thread([state, why] {
      std::shared_lock lock(state->mutex);
      if (state->trainer != nullptr) state->trainer->ReportFailure(why).IgnoreError();
    }).detach();
    std::shared_lock lock(state->mutex);
    if (state->trainer != nullptr) state->trainer->Abort(why);
  });
}

int PeerWatch::EndAfterError(const absl::Status& error, int exit_code) {
  state_->exit_code = exit_code;
  Trainer* trainer = nullptr;
  {
    std::lock_guard lock(state_->mutex);
    state_->starts = false;
    trainer = std::exchange(state_->trainer, nullptr);
  }
  const absl::Status why = world_.Fail(error);
  const bool elsewhere = world_.failed_elsewhere();
  if (!elsewhere) WriteErrorFile(why);
  // Process 0 speaks for all of an error that all have.
  if (elsewhere || world_.leads() || !IsAgreed(why)) Say(world_, why);
  state_->said = true;
  // A call of the control plane may have returned the failure before OnFailure told of it.
  if (elsewhere && trainer != nullptr) trainer->ReportFailure(why).IgnoreError();
  return elsewhere ? kExitPeer : exit_code;
}

void PeerWatch::Set(Trainer* trainer) {
  std::lock_guard lock(state_->mutex);
  state_->starts = false;
  state_->trainer = trainer;
  if (trainer != nullptr && !state_->why.ok()) trainer->Abort(state_->why);
}

}  // namespace shale
