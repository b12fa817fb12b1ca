#include "engine/run/calibrate/calibrate.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <memory>
#include <utility>
#include <variant>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "engine/api/job.h"
#include "engine/api/trainer.h"
#include "engine/files/io/file.h"
#include "engine/plan/time/profile.h"
#include "engine/plan/time/work.h"
#include "engine/run/calibrate/random_tokens.h"
#include "engine/run/calibrate/speeds.h"
#include "engine/run/runtime/backend.h"
#include "engine/run/runtime/work_times.h"
#include "engine/run/train/reports.h"
#include "engine/run/train/session.h"
#include "kernels/check.h"
#include "kernels/device/cpu/physical_memory.h"
#include "kernels/device/device.h"
#include "sharding/comm/gloo/gloo.h"

namespace shale {
namespace {

using Clock = std::chrono::steady_clock;

// The jobs that are measured in turns take about this part of the memory: one of so many. On CPUs they may take twice
// as much, because processes are not counted (AddProcesses).
constexpr int64_t kShareOfMemory = 8;

double SecondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Four digits are more than any measurement is good for, and are shorter to read.
double Rounded(double value) {
  double rounded = value;
  return absl::SimpleAtod(absl::StrFormat("%.4g", value), &rounded) ? rounded : value;
}

std::string Describe(const Job& job) {
  const int64_t ranks = job.sharding.ranks;
  return absl::StrFormat("%s, vocabulary %d, %d x %d tokens, %s, %d rank%s, %s", KindName(job.model),
                         Vocabulary(job.model), job.batch.micro_batch, job.batch.sequence_length,
                         absl::AsciiStrToLower(ToString(DTypeOf(job.precision.compute))), ranks, ranks == 1 ? "" : "s",
                         ToString(job.sharding.accumulation));
}

// Measured times, by how many ranks the host had.
using ByRanks = std::map<int64_t, WorkTimes>;

// Adds to a profile what was measured between threads, or, if `processes`, the collectives between processes.
void AddWorks(const WorkTimes& times, int64_t ranks_on_host, bool processes, proto::MachineProfile& profile) {
  if (times.steps() == 0) return;
  constexpr double kLeastSeconds = 1e-9;
  proto::MachineProfile measured;
  for (const auto& [text, samples] : times.works()) {
    if (processes && samples.work.work_class != WorkClass::kCollective) continue;
    const MeanAndSpread seconds = MeanOf(samples.seconds);
    proto::MeasuredWork& work = *measured.add_works();
    work.set_kind(processes ? KindBetweenProcesses(samples.work.kind) : samples.work.kind);
    for (const double size : samples.work.sizes) work.add_sizes(size);
    work.set_flops(samples.work.flops);
    work.set_bytes(samples.work.bytes());
    work.set_seconds(Rounded(std::max(seconds.mean, kLeastSeconds)));
    work.set_spread(Rounded(seconds.spread / std::max(seconds.mean, kLeastSeconds)));
    work.set_count(std::ssize(samples.seconds));
    work.set_ranks_on_host(ranks_on_host);
  }
  if (!processes) {
    measured.set_issue_seconds(Rounded(times.issue_seconds()));
    measured.set_between_steps_seconds(Rounded(times.between_steps_seconds()));
    if (ranks_on_host > 1) measured.set_rank_spread(Rounded(times.rank_spread()));
  }
  MergeProfile(measured, &profile);
}

// A job whose steps are measured.
struct Measured {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<RandomTokens> data;
  std::unique_ptr<Trainer> trainer;
  // Takes a step in one of so many rounds. Ranks that exchange as processes do are there for their collectives alone,
  // of which a step has many.
  int every_rounds = 1;
};

// The fewest and the most elements of works of a kind.
struct Sizes {
  double least = 0, most = 0;
};
using SizesByKind = std::map<std::string, Sizes>;

// What the steps of all jobs showed.
struct Showed {
  ByRanks threads, processes;                        // By how ranks exchanged.
  std::map<int64_t, SizesByKind> between_processes;  // Of collectives, by the ranks on the host.
  std::vector<ProbedSpeed> speeds;
  int64_t after_rounds = 0;  // How often CalibrateOptions::after_round has run.
};

// Starts a job, with one step that warms up. If `processes`, its ranks exchange as processes do.
absl::StatusOr<Measured> Start(Job job, const CalibrateOptions& options, bool processes, WorkTimes& times) {
  job.lr_schedule.steps = std::max<int64_t>(job.lr_schedule.steps, 1 + options.rounds);
  job.runtime.search.clear();  // A search needs what is measured here.
  Measured started{.data = std::make_unique<RandomTokens>(job)};
  SHALE_ASSIGN_OR_RETURN(started.backend, options.create_backend(job));
  if (processes) started.backend = WithRanksAsProcesses(std::move(started.backend));
  SHALE_ASSIGN_OR_RETURN(
      started.trainer,
      Trainer::Create(job, {.backend = started.backend.get(),
                            .data = started.data.get(),
                            .trace = {.first_step = 2, .steps = std::numeric_limits<int32_t>::max()}}));
  CollectWorkTimes(*started.trainer, times);
  SHALE_RETURN_IF_ERROR(started.trainer->Step().status());
  return started;
}

// Returns whether a job that could not be started for this reason is left out.
bool IsLeftOut(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status) || absl::IsFailedPrecondition(status);
}

// Jobs that take turns: those of `all` from `begin` to `end` that could be started.
struct Together {
  std::vector<Measured> jobs;
  int64_t bytes = 0;
  int64_t begin = 0, end = 0, all = 0;

  // Returns how many of `rounds` rounds of all jobs are as much work as what is done after `done` rounds of these.
  int64_t RoundsOfAll(int64_t done, int64_t rounds) const { return (begin * rounds + (end - begin) * done) / all; }
};

// Adds the collectives of a plan to those that were measured between processes. Returns whether one of them is of
// another kind than these, or so much smaller or larger that it could not be told from them.
bool AddCollectives(const JobPlan& plan, SizesByKind& measured) {
  constexpr double kNear = 8;
  bool added = false;
  for (const Instruction& instruction : plan.train.step.program.instructions) {
    if (!std::holds_alternative<Collective>(instruction.action)) continue;
    const Work work = WorkOf(instruction, plan.options.mesh);
    const double elements = work.sizes[0];
    const auto [found, is_new] = measured.try_emplace(work.kind, Sizes{elements, elements});
    Sizes& sizes = found->second;
    added |= is_new || elements * kNear < sizes.least || elements > sizes.most * kNear;
    sizes = {std::min(sizes.least, elements), std::max(sizes.most, elements)};
  }
  return added;
}

// Adds a job on CPUs, whose ranks are threads of `threads`, again with ranks that exchange as processes do, if that
// tells more of their collectives. Leaves it out if such ranks cannot connect.
absl::Status AddProcesses(const Job& job, const Trainer& threads, const CalibrateOptions& options, Showed& showed,
                          Together& together) {
  const int64_t ranks = job.sharding.ranks;
  if (job.runtime.device != DeviceType::kCpu || ranks == 1) return absl::OkStatus();
  SizesByKind measured = showed.between_processes[ranks];
  if (!AddCollectives(threads.plan(), measured)) return absl::OkStatus();
  absl::StatusOr<Measured> started = Start(job, options, /*processes=*/true, showed.processes[ranks]);
  if (started.ok()) {
    showed.between_processes[ranks] = std::move(measured);
    started->every_rounds = 2;
    together.jobs.push_back(*std::move(started));
    return absl::OkStatus();
  }
  const absl::Status& why = started.status();
  if (!IsLeftOut(why) && !absl::IsUnavailable(why) && !absl::IsDeadlineExceeded(why)) return why;
  if (options.progress) options.progress(absl::StrCat("between processes: left out: ", why.message()));
  return absl::OkStatus();
}

// Runs steps of the jobs in turns.
absl::Status RunRounds(const Together& together, const CalibrateOptions& options, Clock::time_point begin,
                       SpeedProbe& probe, Showed& showed) {
  for (int round = 0; round < options.rounds; ++round) {
    for (const Measured& job : together.jobs) {
      if (round % job.every_rounds != 0) continue;
      if (options.speed != nullptr) {
        SHALE_ASSIGN_OR_RETURN(const ProbedSpeed speed, probe.Probe());
        showed.speeds.push_back(speed);
      }
      SHALE_RETURN_IF_ERROR(job.trainer->Step().status());
    }
    const int64_t rounds_of_all = together.RoundsOfAll(round + 1, options.rounds);
    for (; options.after_round && showed.after_rounds < rounds_of_all; ++showed.after_rounds) {
      SHALE_RETURN_IF_ERROR(options.after_round());
    }
    if (SecondsSince(begin) > options.seconds) break;
  }
  return absl::OkStatus();
}

// Raises the peaks to what works reached in steps, if other programs ran when the peaks were measured.
void RaisePeaks(proto::MachineProfile& profile) {
  double f32 = profile.peak_flops_f32(), bf16 = profile.peak_flops_bf16(), fp8 = profile.peak_flops_fp8();
  for (const proto::MeasuredWork& work : profile.works()) {
    // The ranks on CPUs divide the cores of their host.
    const double ranks = profile.device() == "CPU" ? static_cast<double>(work.ranks_on_host()) : 1;
    double& peak = MultipliesFloat8(work.kind()) ? fp8 : absl::StrContains(work.kind(), "f16") ? bf16 : f32;
    peak = std::max(peak, Rounded(ranks * work.flops() / work.seconds()));
  }
  profile.set_peak_flops_f32(f32);
  profile.set_peak_flops_bf16(bf16);
  if (fp8 > 0) profile.set_peak_flops_fp8(fp8);
}

// Sets what the host and its devices are, and what they reach at most.
absl::Status DescribeMachine(const Backend& backend, proto::MachineProfile& profile) {
  const MachineKey key = KeyOfThisHost(backend.device_name());
  profile.set_name(key.processor);
  profile.set_processor(key.processor);
  profile.set_device(key.device);
  profile.set_threads(key.threads);
  profile.set_devices_per_host(1);
  proto::Origin& origin = *profile.mutable_origin();
  origin.set_source(proto::Origin::MEASURED);
  origin.set_date(absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone()));
  origin.set_by("calibrate");
  profile.set_host_bytes(PhysicalMemoryBytes());
  SHALE_ASSIGN_OR_RETURN(const auto devices, backend.CreateDevices(/*ranks=*/1, /*synchronous=*/false));
  if (const absl::StatusOr<DeviceMemory> memory = devices[0]->Memory(); memory.ok()) {
    profile.set_device_bytes(memory->total_bytes);
    const auto [major, minor] = backend.compute_capability();
    profile.set_compute_major(major);
    profile.set_compute_minor(minor);
  }
  SHALE_ASSIGN_OR_RETURN(const double f32, PeakFlops(backend, DType::kFloat32, /*ranks=*/1));
  SHALE_ASSIGN_OR_RETURN(const double bf16, PeakFlops(backend, DType::kBFloat16, /*ranks=*/1));
  SHALE_ASSIGN_OR_RETURN(const double copy, CopyBytesPerSecond(backend));
  profile.set_peak_flops_f32(Rounded(f32));
  profile.set_peak_flops_bf16(Rounded(bf16));
  profile.set_copy_bytes_per_second(Rounded(copy));
  return absl::OkStatus();
}

// See WithRanksAsProcesses.
class ProcessesBackend : public Backend {
 public:
  explicit ProcessesBackend(std::unique_ptr<Backend> threads) : threads_(std::move(threads)) {}
  std::unique_ptr<Ops> CreateOps(int64_t ranks, const Device* device) const override {
    return threads_->CreateOps(ranks, device);
  }
  absl::StatusOr<std::vector<std::shared_ptr<Device>>> CreateDevices(int ranks, bool synchronous) const override {
    return threads_->CreateDevices(ranks, synchronous);
  }
  absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateGroup(const GroupMembers& group) const override {
    SHALE_RETURN_IF_ERROR(group.CheckOneProcess());
    return CreateGlooGroupOfThreads(group.name, group.size, {.read_memory = read_memory_});
  }
  absl::StatusOr<Budget> DefaultBudget(int64_t ranks) const override { return threads_->DefaultBudget(ranks); }
  CpuMatMuls cpu_matmuls() const override { return threads_->cpu_matmuls(); }

 private:
  const std::unique_ptr<Backend> threads_;
  const bool read_memory_ = ProcessesMayReadMemory();
};

}  // namespace

std::unique_ptr<Backend> WithRanksAsProcesses(std::unique_ptr<Backend> backend) {
  SHALE_CHECK(backend->device_name().empty()) << "ranks on GPUs do not exchange through their processes";
  return std::make_unique<ProcessesBackend>(std::move(backend));
}

absl::StatusOr<proto::MachineProfile> Calibrate(const std::vector<Job>& jobs, const CalibrateOptions& options) {
  const auto tell = [&](const std::string& line) {
    if (options.progress) options.progress(line);
  };
  const Clock::time_point begin = Clock::now();
  proto::MachineProfile profile;
  std::unique_ptr<SpeedProbe> probe;
  Showed showed;
  Together together{.all = std::ssize(jobs)};
  int64_t budget = 0;
  absl::Status left_out = absl::InvalidArgumentError("there is no job to measure");
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (SecondsSince(begin) > options.seconds / 2) {  // The other half is for rounds.
      tell(absl::StrFormat("the time is up: %d of %d jobs are not measured; give more seconds", jobs.size() - i,
                           jobs.size()));
      break;
    }
    if (probe == nullptr) {
      SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, options.create_backend(jobs[i]));
      SHALE_RETURN_IF_ERROR(DescribeMachine(*backend, profile));
      SHALE_ASSIGN_OR_RETURN(probe, SpeedProbe::Create(*backend));
      budget = (profile.device_bytes() > 0 ? profile.device_bytes() : profile.host_bytes()) / kShareOfMemory;
      if (options.bytes_together > 0) budget = options.bytes_together;
    }
    const int64_t ranks = jobs[i].sharding.ranks;
    absl::StatusOr<Measured> started = Start(jobs[i], options, /*processes=*/false, showed.threads[ranks]);
    const std::string line = absl::StrCat(i + 1, " of ", jobs.size(), "  ", Describe(jobs[i]));
    together.end = static_cast<int64_t>(i) + 1;
    if (started.ok()) {
      tell(line);
      SHALE_RETURN_IF_ERROR(AddProcesses(jobs[i], *started->trainer, options, showed, together));
      together.bytes += started->trainer->plan().arena_bytes * ranks;
      together.jobs.push_back(*std::move(started));
    } else if (IsLeftOut(started.status())) {
      left_out = started.status();
      tell(absl::StrCat(line, ": left out: ", left_out.message()));
    } else {
      return started.status();
    }
    if (together.bytes > budget) {
      SHALE_RETURN_IF_ERROR(RunRounds(together, options, begin, *probe, showed));
      together = {.begin = together.end, .all = together.all};
    }
  }
  if (!together.jobs.empty()) SHALE_RETURN_IF_ERROR(RunRounds(together, options, begin, *probe, showed));
  const bool measured = std::any_of(showed.threads.begin(), showed.threads.end(),
                                    [](const auto& of_ranks) { return of_ranks.second.steps() > 0; });
  if (!measured) return left_out;
  tell(absl::StrFormat("measured in %.0f s", SecondsSince(begin)));
  for (const auto& [ranks, times] : showed.threads) AddWorks(times, ranks, /*processes=*/false, profile);
  for (const auto& [ranks, times] : showed.processes) AddWorks(times, ranks, /*processes=*/true, profile);
  if (options.speed != nullptr) *options.speed = MeanOf(showed.speeds);
  RaisePeaks(profile);
  SHALE_RETURN_IF_ERROR(CheckProfile(profile, "what was measured"));
  return profile;
}

absl::StatusOr<proto::MachineProfile> KeepProfile(const proto::MachineProfile& measured,
                                                  const std::string& cache_folder) {
  const MachineKey key{.device = measured.device(), .processor = measured.processor(), .threads = measured.threads()};
  proto::MachineProfile profile;
  if (absl::StatusOr<proto::MachineProfile> cached = CachedProfile(cache_folder, key); cached.ok()) {
    profile = *std::move(cached);
  } else {
    for (const std::string& name : ProfileNames()) {
      SHALE_ASSIGN_OR_RETURN(proto::MachineProfile known, ReadProfile(name));
      if (known.processor() == key.processor) profile = std::move(known);
    }
  }
  MergeProfile(measured, &profile);
  SHALE_RETURN_IF_ERROR(CheckProfile(profile, "the profile with what was measured"));
  if (cache_folder.empty()) return profile;
  const std::string path = CachedProfilePath(cache_folder, key);
  SHALE_RETURN_IF_ERROR(MakeFoldersOf(path));
  SHALE_RETURN_IF_ERROR(WriteFileDurably(path, PrintProfile(profile)));
  return profile;
}

}  // namespace shale
