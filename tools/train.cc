// train: trains the model of a job. Prints the plan, then a line per step, and stores the result in a run folder.

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/api/job.h"
#include "engine/api/job_processes.h"
#include "engine/api/plan_text.h"
#include "engine/api/trainer.h"
#include "engine/strings/messages.h"
#include "engine/strings/printing.h"
#include "kernels/check.h"
#include "tools/command_line.h"
#include "tools/output_file.h"
#include "tools/show_text.h"
#include "tools/verify_job.h"

namespace shale {
namespace {

constexpr int kExitPeer = 3;  // Another process of the job failed.

constexpr char kFooter[] =
    "The run folder (telemetry.run_folder, by default runs/<name>) gets job.textproto, plan.txt, metrics.jsonl and\n"
    "checkpoints. Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 end the run at the next step boundary with a checkpoint; a "
    "second one\n"
    "ends it at once.\n"
    "\n"
    "--resume=latest resumes from the newest intact checkpoint in the run folder, --resume=auto does so if there is\n"
    "one and otherwise starts over (for jobs that are started again whenever they end), --resume=FOLDER resumes from\n"
    "that checkpoint. The job may have changed in anything but the model, the tokenizer, the sequence length, the\n"
    "data and their order, which parameters train, and the optimizer's rule for a parameter.\n"
    "A run that has saved checkpoints is never started over without --overwrite: if they are not there now, as when a\n"
    "volume is not mounted, --resume refuses.\n"
    "\n"
    "--verify trains nothing: it checks, on a smaller copy of the job, that gradients, divisions of a step, saves, "
    "data\n"
    "and memory are what they should be, and names what is not. It writes no run folder. Ctrl-C ends it before the\n"
    "next step.\n"
    "\n"
    "Started by torchrun, mpirun, srun or tools/launch, the processes train one job together, and each holds some of\n"
    "its ranks. Started otherwise, the ranks are threads of this process.\n"
    "\n"
    "Exit codes: 0 trained to the end, or all checks of --verify hold; 1 the run failed, also while it started, or a\n"
    "check did; 2 wrong command line, job, data or launch, nothing was started; 3 another process of the job failed;\n"
    "129, 130, 138 or 143 ended by SIGHUP, SIGINT, SIGUSR1 or SIGTERM.";

// The state of the signal handler. The handler touches only these atomics and the trainer's stop flag, which is atomic
// too.
std::atomic<Trainer*> g_trainer = nullptr;
std::atomic<bool> g_checks = false;     // The job is checked (--verify), not trained.
std::atomic<bool> g_cancelled = false;  // Ends the checks.
std::atomic<int> g_signal = 0;
std::atomic<int64_t> g_signal_ns = 0;  // Time of the first signal.

// Two signals within this time count as one: programs that start others, such as timeout, send a signal both to the
// process and to its group, so the process gets it twice.
constexpr int64_t kSameSignalNs = 250'000'000;

extern "C" void OnSignal(int signal) {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t now_ns = int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  int64_t first_ns = 0;
  if (!g_signal_ns.compare_exchange_strong(first_ns, now_ns)) {
    if (now_ns - first_ns < kSameSignalNs) return;
    _exit(128 + signal);
  }
  g_signal = signal;
  g_cancelled = true;
  if (g_checks) return;
  // Before the trainer exists, there is nothing to save.
  Trainer* trainer = g_trainer.load();
  if (trainer == nullptr) _exit(128 + signal);
  trainer->RequestStop();
}

void CatchSignals() {
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  // A signal may interrupt a system call, for example one that writes the final checkpoint. SA_RESTART restarts it.
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // A terminal that is closed sends SIGHUP. nohup makes programs ignore it.
  struct sigaction former = {};
  if (sigaction(SIGHUP, nullptr, &former) == 0 && former.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
  sigaction(SIGUSR1, &action, nullptr);  // Slurm sends it ahead of a job's time limit if it is asked to.
  // Exceeding a limit on the size of files should fail the write, like any other error, and not kill the process.
  std::signal(SIGXFSZ, SIG_IGN);
}

void Print(absl::string_view line) {
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fputc('\n', stdout);
  std::fflush(stdout);
}

int Fail(const absl::Status& status, int exit_code) {
  std::fflush(stdout);
  std::fprintf(stderr, "train: %s\n", Printable(status.message()).c_str());
  return exit_code;
}

// Returns the exit code of a run that an error ended before its first step: kExitFailed if the same call may succeed
// later, as after an error of the network, which launchers then try; kExitUsage if the command line, the job, its data
// or the launch must change first.
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

// Returns the exit code of a process that could not join the others: kExitPeer if one of them is missing or has failed;
// otherwise as StartExitCode.
int JoinExitCode(const absl::Status& error) {
  if (absl::IsAborted(error) || absl::IsDeadlineExceeded(error)) return kExitPeer;
  return absl::IsAlreadyExists(error) ? kExitFailed : StartExitCode(error);  // Another program has the port.
}

// What ends the process if it does not end by itself, in a thread of its own.
std::atomic<int> g_exit_code = kExitFailed;  // If this process made the job fail.
std::atomic<bool> g_said = false;            // The failure has been printed.

// Prints why the job failed, and which process says so ("process 1", or "" for the only one). An error that all
// processes have says itself whose it was, and so does an error about this process. Other processes may have written
// parts of the message.
void Say(const std::string& process, const absl::Status& why) {
  const bool named = process.empty() || IsAgreed(why) || absl::StartsWith(why.message(), process + " ");
  std::fflush(stdout);
  std::fprintf(stderr, "train%s: %s\n", named ? "" : absl::StrCat(", ", process).c_str(),
               Printable(why.message()).c_str());
}

// Ends the job with the result of this process's work. Returns the exit code of the process: kExitOk, kExitPeer if
// another process made the job fail, or otherwise `exit_code`.
int End(JobProcesses& processes, const absl::Status& result, int exit_code) {
  g_exit_code = exit_code;
  const absl::Status why = processes.End(result);
  if (why.ok()) return kExitOk;
  const bool elsewhere = processes.failed_elsewhere();
  // Process 0 speaks for all of an error that all have.
  if (elsewhere || processes.leads() || !IsAgreed(why)) {
    Say(processes.alone() ? "" : absl::StrCat("process ", processes.process()), why);
  }
  g_said = true;
  return elsewhere ? kExitPeer : exit_code;
}

absl::StatusOr<std::unique_ptr<JobProcesses>> Join(const Job& job) {
  // The process that stops waiting for the others has no name for itself any more.
  const absl::StatusOr<LaunchedProcess> place = FindLaunchedProcess();
  const std::string process = place.ok() ? absl::StrCat("process ", place->process) : "";
  return JobProcesses::Join(
      job, {.end_process =
                [process](const absl::Status& why, bool elsewhere) {
                  if (!g_said) Say(process, why);
                  _exit(elsewhere ? kExitPeer : g_exit_code.load());
                },
            .report = [](absl::string_view line) { std::fprintf(stderr, "train: %s\n", std::string(line).c_str()); }});
}

struct Flags {
  std::string job;
  std::vector<std::string> overrides;
  std::string resume;
  bool overwrite = false;
  bool verify = false;
  bool dump_program = false;
  std::string memory_snapshot;
  int64_t grace_seconds = 30;  // What Kubernetes and Slurm give unless they are asked for something else.
  TraceOptions trace;
};

int FailUsage(absl::string_view message) {
  const absl::Status error = absl::InvalidArgumentError(message);
  WriteErrorFile(error);
  return Fail(error, kExitUsage);
}

int CheckJob(const Flags& flags) {
  if (flags.overwrite || !flags.resume.empty() || !flags.trace.path.empty()) {
    return FailUsage("--verify trains nothing; leave out --resume, --overwrite and --trace");
  }
  const absl::StatusOr<LaunchedProcess> place = FindLaunchedProcess();
  if (!place.ok()) return FailUsage(place.status().message());
  if (place->processes > 1) {
    return FailUsage(absl::StrCat("--verify checks a job in one process, and ", place->launcher, " started ",
                                  place->processes, "; start one by itself"));
  }
  // Signals end the checks instead of the process, so that the files of these checks are removed.
  g_checks = true;
  return VerifyJob(flags.job, flags.overrides, g_cancelled).value_or(128 + g_signal);
}

// Shows, in process 0, what the run will do.
absl::Status Show(const Flags& flags, JobRun& run) {
  const Trainer& trainer = run.trainer();
  const JobPlan& plan = trainer.plan();
  Print(run.PlanText());
  if (flags.dump_program) Print(ProgramText(trainer.job(), plan));
  if (!flags.memory_snapshot.empty()) {
    SHALE_RETURN_IF_ERROR(WriteOutput(flags.memory_snapshot, MemorySnapshot(plan)));
  }
  run.PrintBeginning(flags.grace_seconds);
  return absl::OkStatus();
}

ResumeOptions ResumeOf(const Flags& flags) {
  if (flags.resume.empty()) return {.from = flags.overwrite ? ResumeFrom::kReplace : ResumeFrom::kNothing};
  if (flags.resume == "latest") return {.from = ResumeFrom::kLatest};
  if (flags.resume == "auto") return {.from = ResumeFrom::kLatestOrStart};
  return {.from = ResumeFrom::kPath, .path = flags.resume};
}

// Prints a line once for all processes of the job.
void PrintOnce(const JobProcesses& processes, absl::string_view line) {
  if (processes.leads()) Print(line);
}

// Says how the run has ended. Returns the exit code.
int SayEnd(const Trainer& trainer, const JobProcesses& processes) {
  const std::string& folder = trainer.job().telemetry.run_folder;
  const std::string steps = absl::StrCat(WithCommas(trainer.steps_done()), " of ", WithCommas(trainer.total_steps()));
  if (const std::string why = trainer.ended_early(); !why.empty()) {
    PrintOnce(processes, absl::StrCat("ended early, after step ", steps, ": ", why,
                                      " (checkpoint.patience); the run is in ", folder));
    return kExitOk;
  }
  if (trainer.steps_done() < trainer.total_steps() && (g_signal != 0 || !processes.alone())) {
    PrintOnce(processes,
              absl::StrCat("stopped after step ", steps, "; the run is in ", folder, "; --resume=latest continues it"));
    return g_signal != 0 ? 128 + g_signal : kExitOk;
  }
  PrintOnce(processes, absl::StrCat("done; the run is in ", folder));
  return kExitOk;
}

// Loads the job with further settings.
absl::StatusOr<Job> LoadWith(const Flags& flags, const std::vector<Override>& settings = {}) {
  std::vector<std::string> overrides = flags.overrides;
  for (const Override& setting : settings) overrides.push_back(setting.text());
  return LoadJob(flags.job, overrides, ModelFrom::kJobAndData);
}

int Train(const Flags& flags) {
  if (flags.overwrite && !flags.resume.empty()) {
    return FailUsage("--overwrite and --resume exclude each other: one starts over, the other resumes");
  }
  const absl::StatusOr<Job> job = LoadWith(flags);
  if (!job.ok()) {
    const int exit_code = Fail(job.status(), kExitUsage);
    JobProcesses::Decline(job.status());
    return exit_code;
  }
  const absl::StatusOr<std::unique_ptr<JobProcesses>> joined = Join(*job);
  if (!joined.ok()) return Fail(joined.status(), JoinExitCode(joined.status()));
  JobProcesses& processes = **joined;
  if (const std::string place = processes.Describe(); !place.empty()) PrintOnce(processes, place);

  const absl::StatusOr<std::unique_ptr<JobRun>> run =
      JobRun::Create(processes, *job,
                     {.resume = ResumeOf(flags),
                      .trace = flags.trace,
                      .print = Print,
                      .text_progress = ShowText(Print),
                      .job_with = [&](const std::vector<Override>& settings) { return LoadWith(flags, settings); }});
  absl::Status status = run.status();
  if (status.ok()) {
    const auto show = [&]() -> absl::StatusOr<std::string> {
      SHALE_RETURN_IF_ERROR(Show(flags, **run));
      return "";
    };
    status = processes.InProcessZero(show).status();
  }
  if (!status.ok()) return End(processes, status, StartExitCode(status));

  // From here on signals stop the trainer instead of exiting, so that a run folder with a job also gets a checkpoint.
  g_trainer = &(*run)->trainer();
  status = (*run)->Run();
  g_trainer = nullptr;
  if (const int exit_code = End(processes, status, kExitFailed); exit_code != kExitOk) return exit_code;
  return SayEnd((*run)->trainer(), processes);
}

}  // namespace
}  // namespace shale

int main(int argc, char** argv) {
  shale::Flags flags;
  double gb_per_second = 0;
  shale::CommandLine line("train",
                          "Trains the model that a job describes, and keeps the result in the job's run folder.");
  line.Text("job", "FILE", "The job spec, text or binary (proto/job.proto).", &flags.job).Required();
  line.List("set", "PATH=VALUE", "Overrides a field of the job, as in --set=optimizer.learning_rate=1e-3.",
            &flags.overrides);
  line.Switch("overwrite", "Replaces the run that is in the run folder.", &flags.overwrite);
  line.Text("resume", "latest|auto|FOLDER", "Resumes from a checkpoint; see below.", &flags.resume);
  line.Switch("verify", "Checks the job instead of training it; see below.", &flags.verify);
  line.Text(
      "trace", "FILE",
      "Records when every instruction of some steps ran, for chrome://tracing or ui.perfetto.dev, and writes tables "
      "of where the time went to FILE.txt.",
      &flags.trace.path);
  line.Integer("trace_first_step", "With --trace: the first step to trace; the first step of this process is 1.", 1,
               1000000000, &flags.trace.first_step);
  line.Integer("trace_steps", "With --trace: how many steps to trace.", 1, 1000, &flags.trace.steps);
  line.Number(
      "trace_gb_per_second",
      "With --trace: the bandwidth of the device's memory in GB/s, to which the tables compare ops. 0: the best rate "
      "in the trace.",
      0, 1e6, &gb_per_second);
  line.Integer(
      "grace_seconds",
      "How many seconds the system lets a process run after SIGTERM. train warns at the start if a save takes longer.",
      0, 1000000, &flags.grace_seconds);
  line.Switch("dump_program", "Prints the program of a step, instruction by instruction.", &flags.dump_program);
  line.Text("memory_snapshot", "FILE",
            "Writes a step's planned allocations for PyTorch's viewer, pytorch.org/memory_viz.",
            &flags.memory_snapshot);
  line.Footer(shale::kFooter);
  line.Topics(
      "Explains fields of a job: those of a section, as in --help=batch, or one, as in --help=data.packing. "
      "--help=job lists the sections.",
      [](absl::string_view topic) { return shale::FieldHelp(topic); });
  if (int exit_code; line.Done(argc, argv, &exit_code)) return exit_code;
  flags.trace.bytes_per_second = gb_per_second * 1e9;
  shale::CatchSignals();
  return flags.verify ? shale::CheckJob(flags) : shale::Train(flags);
}
