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
#include "absl/strings/str_cat.h"
#include "engine/backends/job_backend.h"
#include "engine/config/file_remarks.h"
#include "engine/config/parse.h"
#include "engine/config/print.h"
#include "engine/launch/world.h"
#include "engine/program/program.h"
#include "engine/report/memory_snapshot.h"
#include "engine/report/plan_text.h"
#include "engine/text/numbers.h"
#include "engine/text/quote.h"
#include "engine/train/run.h"
#include "engine/train/run_folder.h"
#include "engine/train/run_sinks.h"
#include "engine/train/trainer.h"
#include "kernels/check.h"
#include "tools/command_line.h"
#include "tools/job_manager.h"
#include "tools/joint_run.h"
#include "tools/measured_peak.h"
#include "tools/output_file.h"
#include "tools/resume_flag.h"
#include "tools/show_text.h"
#include "tools/start_lines.h"
#include "tools/verify_job.h"

namespace shale {
namespace {

constexpr char kFooter[] =
    "The run folder (telemetry.run_folder, by default runs/<name>) gets job.textproto, plan.txt, metrics.jsonl and\n"
    "checkpoints. Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 end the run at the next step boundary with a checkpoint; a "
    "second one\n"
    "ends it at once.\n"
    "\n"
    "--resume=latest resumes from the newest intact checkpoint in the run folder, --resume=auto does so if there is\n"
    "one and otherwise starts over (for jobs that are started again whenever they end), --resume=FOLDER resumes from\n"
    "that checkpoint. The job may have changed in anything but model, tokenizer, sequence length, data and their "
    "order.\n"
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
  if (exit_code != kExitPeer) WriteErrorFile(status);
  return exit_code;
}

// Says from which checkpoint the run goes on. Of a new run, says what the files of its model ask for and it leaves out.
void PrintBeginning(const Resumed& resumed, const Job& job) {
  for (const std::string& reason : resumed.passed_over) Print(absl::StrCat("skipped: ", reason));
  if (resumed.path.empty()) {
    for (const std::string& remark : FileRemarks(job)) Print(remark);
    return;
  }
  Print(absl::StrCat("resuming from ", resumed.path, " after step ", WithCommas(resumed.manifest.step)));
}

std::optional<int64_t> GoesOnAfter(const Resumed& resumed) {
  return resumed.path.empty() ? std::nullopt : std::optional<int64_t>(resumed.manifest.step);
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

int CheckJob(const Flags& flags) {
  if (flags.overwrite || !flags.resume.empty() || !flags.trace.path.empty()) {
    return Fail(absl::InvalidArgumentError("--verify trains nothing; leave out --resume, --overwrite and --trace"),
                kExitUsage);
  }
  const absl::StatusOr<ProcessPlace> place = FindProcessPlace(EnvironmentVariables());
  if (!place.ok()) return Fail(place.status(), kExitUsage);
  if (place->processes > 1) {
    return Fail(absl::InvalidArgumentError(absl::StrCat("--verify checks a job in one process, and ", place->launcher,
                                                        " started ", place->processes, "; start one by itself")),
                kExitUsage);
  }
  // Signals end the checks instead of the process, so that the files of these checks are removed.
  g_checks = true;
  return VerifyJob(flags.job, flags.overrides, g_cancelled).value_or(128 + g_signal);
}

// Returns the plan, with what this process takes outside of it.
std::string PlanOf(const Trainer& trainer, const std::string& products) {
  std::string devices = trainer.device_description();
  if (!devices.empty()) devices += '\n';
  if (!products.empty()) devices += products + '\n';
  return absl::StrCat(PlanText(trainer.job(), trainer.plan()), "\noutside the arenas  ",
                      FormatBytes(trainer.overhead_bytes()),
                      " of this process, as measured: code, libraries, data buffers\n", devices);
}

absl::Status ShowPlan(const Flags& flags, const Trainer& trainer, const std::string& plan_text) {
  const JobPlan& plan = trainer.plan();
  Print(plan_text);
  if (flags.dump_program) Print(ProgramText(trainer.job(), plan));
  if (flags.memory_snapshot.empty()) return absl::OkStatus();
  return WriteOutput(flags.memory_snapshot,
                     MemorySnapshot(plan.train.step.program, plan.train.memory, plan.arena_bytes));
}

void PrintTrace(const Flags& flags, const Trainer& trainer, const std::string& path) {
  if (const std::string table = trainer.TraceTable(); !table.empty()) {
    Print(absl::StrCat(table, "trace: ", path));
  } else if (!path.empty()) {
    Print(absl::StrCat("no trace: the run had no step ", flags.trace.first_step));
  }
}

int Train(const Flags& flags) {
  const ResumeOptions resume = ParseResume(flags.resume, flags.overwrite);
  if (flags.overwrite && !flags.resume.empty()) {
    return Fail(absl::InvalidArgumentError("--overwrite and --resume exclude each other: one starts over, the other "
                                           "resumes"),
                kExitUsage);
  }
  absl::StatusOr<Job> job = LoadJob(flags.job, flags.overrides, ModelFrom::kJobAndData);
  if (!job.ok()) {
    const int exit_code = Fail(job.status(), kExitUsage);
    World::Decline(EnvironmentVariables(), job.status());
    return exit_code;
  }
  PrepareEnvironment(*job);  // Before the threads that connect the processes.
  absl::StatusOr<std::unique_ptr<World>> joined = JoinWorld(*job);
  if (!joined.ok()) return Fail(joined.status(), JoinExitCode(joined.status()));
  World& world = **joined;
  PeerWatch watch(world);
  const auto fail = [&](const absl::Status& error, int exit_code) { return watch.EndAfterError(error, exit_code); };
  // Process 0 speaks for all.
  const PrintLine print = world.leads() ? Print : PrintLine([](absl::string_view) {});
  // Also says what was found of a launcher and not used.
  if (world.place().launched() || !world.place().note.empty()) print(world.place().Describe());

  TrainerOptions options{.resume = resume, .trace = flags.trace};
  options.trace.path = TracePath(world, *job, flags.trace.path);
  const absl::StatusOr<Decided> decided = DecideTogether(world, resume, *job, options);
  if (!decided.ok()) return fail(decided.status(), StartExitCode(decided.status()));
  RunFolder* const folder = decided->folder.get();
  RunSinks sinks(world.leads() ? job->telemetry.sinks : SinksConfig());
  StartLines start_lines(sinks, print);
  options.events = &start_lines;
  if (world.leads()) options.text_progress = ShowText(Print);
  const absl::StatusOr<std::unique_ptr<Backend>> backend = CreateBackendOfProcess(*job, PlaceOfBackend(world));
  const absl::Status created = AgreeOnStatus(world.control(), ControlChannel::kSteps, backend.status());
  if (!created.ok()) return fail(created, StartExitCode(created));
  options.backend = backend->get();
  std::string measured;
  if (const absl::Status status = DecidePeakFlops(world, **backend, *job, options, measured); !status.ok()) {
    // FailedPrecondition means that the device is missing. Nothing was started then.
    return fail(status, absl::IsFailedPrecondition(status) ? kExitUsage : kExitFailed);
  }
  absl::StatusOr<std::unique_ptr<Trainer>> trainer = Trainer::Create(*job, options);
  if (!trainer.ok()) return fail(trainer.status(), StartExitCode(trainer.status()));
  watch.Set(trainer->get());

  const std::string plan_text = PlanOf(**trainer, decided->products);
  const auto show = [&]() -> absl::StatusOr<std::string> {
    SHALE_RETURN_IF_ERROR(ShowPlan(flags, **trainer, plan_text));
    if (!measured.empty()) {
      Print(absl::StrCat("peak of a rank  ", FormatFlops(options.peak_flops), "/s, measured ", measured,
                         " (telemetry.peak_flops)"));
    }
    PrintBeginning((*trainer)->resumed(), (*trainer)->job());
    if (folder->former_step() > 0 && (*trainer)->resumed().path.empty()) {
      Print(absl::StrCat("starting over: the run in ", folder->path(), " ended after step ",
                         WithCommas(folder->former_step()), " without a checkpoint"));
    }
    const std::string slow = SlowSaveWarning((*trainer)->plan(), *folder, world.ranks_on_host(), flags.grace_seconds);
    if (!slow.empty()) Print(slow);
    const std::string full = DiskSpaceWarning((*trainer)->plan(), job->checkpoint, *folder);
    if (!full.empty()) Print(full);
    return "";
  };
  if (const absl::Status shown = world.InProcessZero(show).status(); !shown.ok()) {
    return fail(shown, StartExitCode(shown));
  }

  // From here on signals stop the trainer instead of exiting, so that a run folder with a job also gets a checkpoint.
  g_trainer = trainer->get();
  const auto begin = [&]() -> absl::StatusOr<std::string> {
    SHALE_RETURN_IF_ERROR(folder->Begin({.job_text = RecordedJob((*trainer)->job(), options.peak_flops, measured),
                                         .plan_text = plan_text,
                                         .goes_on_after = GoesOnAfter((*trainer)->resumed()),
                                         .from_elsewhere = (*trainer)->resumed().from_elsewhere,
                                         .hf_folder = decided->hf_folder,
                                         .tokenizer_folder = job->data.has_tokenizer() ? job->data.tokenizer : ""}));
    SHALE_RETURN_IF_ERROR(AppendRestart(EnvironmentVariables(), (*trainer)->steps_done(), *folder));
    SHALE_RETURN_IF_ERROR(sinks.Open(folder->path()));
    return "";
  };
  absl::Status status = world.InProcessZero(begin).status();
  if (status.ok()) status = world.leads() ? TrainToEnd(**trainer, *folder, print) : (*trainer)->Run({});
  g_trainer = nullptr;
  for (const std::string& line : sinks.Close()) print(line);
  if (status.ok()) status = JoinTraces(world, *job, flags.trace.path, !(*trainer)->TraceTable().empty());
  if (world.leads()) PrintTrace(flags, **trainer, options.trace.path);
  if (status.ok()) status = world.Leave();
  if (!status.ok()) return fail(status, kExitFailed);
  watch.Set(nullptr);
  if (const std::string why = (*trainer)->ended_early(); !why.empty()) {
    print(absl::StrCat("ended early, after step ", WithCommas((*trainer)->steps_done()), " of ",
                       WithCommas((*trainer)->total_steps()), ": ", why, " (checkpoint.patience); the run is in ",
                       job->telemetry.run_folder));
    return kExitOk;
  }
  if ((*trainer)->steps_done() < (*trainer)->total_steps() && (g_signal != 0 || !world.alone())) {
    print(absl::StrCat("stopped after step ", WithCommas((*trainer)->steps_done()), " of ",
                       WithCommas((*trainer)->total_steps()), "; the run is in ", job->telemetry.run_folder,
                       "; --resume=latest continues it"));
    return g_signal != 0 ? 128 + g_signal : kExitOk;
  }
  print(absl::StrCat("done; the run is in ", job->telemetry.run_folder));
  return kExitOk;
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
  line.Switch("overwrite", "Replace an existing run in the run folder.", &flags.overwrite);
  line.Text("resume", "latest|auto|FOLDER", "Resume from a checkpoint; see below.", &flags.resume);
  line.Switch("verify", "Check the job instead of running it; see below.", &flags.verify);
  line.Text("trace", "FILE", "Trace some steps: when every instruction ran, for chrome://tracing or ui.perfetto.dev.",
            &flags.trace.path);
  line.Integer("trace_first_step", "The first step of this process to trace.", 1, 1000000000, &flags.trace.first_step);
  line.Integer("trace_steps", "How many steps to trace.", 1, 1000, &flags.trace.steps);
  line.Number("trace_gb_per_second",
              "What the device's memory can copy, to which the table compares ops. 0: the best rate of the trace.", 0,
              1e6, &gb_per_second);
  line.Integer(
      "grace_seconds",
      "How long the system lets a process run after SIGTERM. A warning at the start says if a save takes longer.", 0,
      1000000, &flags.grace_seconds);
  line.Switch("dump_program", "Print the program of a step, instruction by instruction.", &flags.dump_program);
  line.Text("memory_snapshot", "FILE",
            "Write a step's planned allocations for PyTorch's viewer, pytorch.org/memory_viz.", &flags.memory_snapshot);
  line.Footer(shale::kFooter);
  if (int exit_code; line.Done(argc, argv, &exit_code)) return exit_code;
  flags.trace.bytes_per_second = gb_per_second * 1e9;
  shale::CatchSignals();
  return flags.verify ? shale::CheckJob(flags) : shale::Train(flags);
}
