// The embedding bench: what it costs to train through the C interface and from Python, and with data of one's own.
//
// Trainers of one job take turns, so that a noisy machine disturbs all of them alike. A turn is two steps, of which the
// second counts: programs step in a loop, but after the turns of others a program's code is no longer in the caches.
// The time of a call beside that of the step is far below the noise of a step, so it is measured by itself: the seconds
// around the call less those that the engine measures inside.
#include <unistd.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/api/job.h"
#include "engine/files/io/file.h"
#include "kernels/check.h"
#include "tools/bench/embedding_contestants.h"
#include "tools/bench/support.h"
#include "tools/command_line.h"

namespace shale {
namespace {

struct Flags {
  std::string job = "tools/jobs/quickstart.textproto";
  std::vector<std::string> overrides;
  int64_t steps = 100, warm_up = 5, busy = 0;
  PythonOptions python = {
      .interpreter = "python3", .script = "tools/bench/embedding.py", .package = "tools/python", .library = ""};
};

struct Row {
  std::string name;
  std::unique_ptr<Contestant> contestant;
  std::vector<double> seconds = {}, outside = {};
  double small_call = 0;
};

// Threads of the host program that compute all the time.
class BusyThreads {
 public:
  explicit BusyThreads(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      threads_.emplace_back([this] {
        double value = 1;
        while (!stop_) value = std::sqrt(value + 1);
        last_ = value;
      });
    }
  }
  ~BusyThreads() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> stop_ = false;
  std::atomic<double> last_ = 0;
  std::vector<std::thread> threads_;
};

// Numbers in words, as many as an epoch of some hundred steps of the quickstart job needs.
std::string MakeText() {
  std::string text;
  for (int i = 0; i < 200000; ++i) absl::StrAppend(&text, i * 7919LL % 10007, i % 9 == 8 ? "\n" : " ");
  return text;
}

absl::Status Measure(const Flags& flags, std::vector<Row>& rows) {
  const BusyThreads busy(flags.busy);
  for (int64_t step = 0; step < flags.warm_up + flags.steps; ++step) {
    std::array<double, 2> losses = {};
    for (size_t turn = 0; turn < rows.size(); ++turn) {
      Row& row = rows[(turn + step) % rows.size()];  // Another one goes first in each round.
      for (double& loss : losses) {
        absl::StatusOr<TimedStep> timed = row.contestant->Step();
        if (!timed.ok())
          return absl::Status(timed.status().code(), absl::StrCat(row.name, ": ", timed.status().message()));
        if (turn == 0) loss = timed->loss;
        if (timed->loss != loss) {
          return absl::InternalError(absl::StrFormat("%s computed the loss %.17g in round %d, another one %.17g",
                                                     row.name, timed->loss, step + 1, loss));
        }
        if (step < flags.warm_up || &loss == losses.data()) continue;
        row.seconds.push_back(timed->seconds);
        row.outside.push_back(timed->seconds - timed->inside);
      }
    }
  }
  for (Row& row : rows) {
    SHALE_ASSIGN_OR_RETURN(row.small_call, row.contestant->SmallCall(100000));
  }
  return absl::OkStatus();
}

std::string Microseconds(double seconds) { return absl::StrFormat("%.2f", seconds * 1e6); }

void Print(const Flags& flags, const std::vector<Row>& rows, const ReadSeconds& reads, int64_t samples) {
  std::printf("%s, %d processors%s; medians of %d steps, in turns; all computed the same losses\n\n",
              ProcessorName().c_str(), ProcessorCount(),
              flags.busy == 0 ? "" : absl::StrCat(", ", flags.busy, " of them busy with other work").c_str(),
              static_cast<int>(flags.steps));
  MarkdownTable table({{"a step by", /*text=*/true},
                       {"ms"},
                       {"ratio"},
                       {"beside the engine's step, us"},
                       {"% of a step"},
                       {"a small call, us"}});
  const double first = Median(rows[0].seconds);
  for (const Row& row : rows) {
    const double seconds = Median(row.seconds), outside = Median(row.outside);
    table.Add({row.name, absl::StrFormat("%.3f", seconds * 1e3), absl::StrFormat("%.4f", seconds / first),
               Microseconds(outside), absl::StrFormat("%.4f", 100 * outside / first),
               row.small_call == 0 ? "" : Microseconds(row.small_call)});
  }
  std::printf("%s\n", table.ToString().c_str());
  std::printf("reading the %d samples of a step, alone: %s us of a file, %s us of memory: %.4f and %.4f %% of a step\n",
              static_cast<int>(samples), Microseconds(reads.file * static_cast<double>(samples)).c_str(),
              Microseconds(reads.memory * static_cast<double>(samples)).c_str(),
              100 * reads.file * static_cast<double>(samples) / first,
              100 * reads.memory * static_cast<double>(samples) / first);
}

absl::Status Bench(const Flags& flags, const std::string& text_file) {
  const std::string text = MakeText();
  SHALE_RETURN_IF_ERROR(WriteFileDurably(text_file, text));
  const std::vector<int32_t> tokens(text.begin(), text.end());
  BenchJob job = {.path = flags.job, .overrides = flags.overrides};
  // Data of a program is not divided for evaluation.
  for (const char* cleared : {"data.evaluation_fraction=", "telemetry.evaluate_every="}) {
    job.overrides.push_back(cleared);
  }
  BenchJob own = job;
  for (const char* cleared : {"data.path=", "data.format="}) own.overrides.push_back(cleared);
  job.overrides.push_back(absl::StrCat("data.path=", text_file));

  std::vector<Row> rows;
  const auto add = [&rows](const char* name, absl::StatusOr<std::unique_ptr<Contestant>> made) -> absl::Status {
    if (!made.ok()) return absl::Status(made.status().code(), absl::StrCat(name, ": ", made.status().message()));
    rows.push_back({.name = name, .contestant = *std::move(made)});
    return absl::OkStatus();
  };
  std::unique_ptr<Contestant> python;  // Started first, because a process with threads should not fork.
  if (!flags.python.library.empty()) {
    SHALE_ASSIGN_OR_RETURN(python, StepInPython(job, flags.python));
  }
  SHALE_RETURN_IF_ERROR(add("C++", StepInCpp(job)));
  SHALE_RETURN_IF_ERROR(add("C", StepInC(job)));
  if (python != nullptr) SHALE_RETURN_IF_ERROR(add("Python", std::move(python)));
  SHALE_RETURN_IF_ERROR(add("C++, tokens in memory", StepOnMemory(own, tokens)));
  SHALE_RETURN_IF_ERROR(Measure(flags, rows));
  SHALE_ASSIGN_OR_RETURN(const Job parsed, LoadJob(job.path, job.overrides));
  SHALE_ASSIGN_OR_RETURN(const ReadSeconds reads,
                         MeasureReads(text_file, tokens, parsed.batch.sequence_length, /*count=*/20000));
  Print(flags, rows, reads, parsed.batch.global_batch);
  return absl::OkStatus();
}

int Run(const Flags& flags) {
  std::string folder = "/tmp/embedding_bench.XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) {
    std::fprintf(stderr, "embedding: cannot make a folder in /tmp\n");
    return kExitFailed;
  }
  const std::string text_file = JoinPath(folder, "text");
  const absl::Status status = Bench(flags, text_file);
  unlink(text_file.c_str());
  rmdir(folder.c_str());
  if (status.ok()) return kExitOk;
  std::fprintf(stderr, "embedding: %s\n", std::string(status.message()).c_str());
  return kExitFailed;
}

}  // namespace
}  // namespace shale

int main(int argc, char** argv) {
  shale::Flags flags;
  shale::CommandLine line("embedding",
                          "Compares steps of one job in C++, through the C interface and from Python, and data in the "
                          "program's memory with a file. Prints a table.");
  line.Text("job", "FILE", "The job spec, of a model of bytes. Its data are not read.", &flags.job);
  line.List("set", "PATH=VALUE", "Overrides a field of the job.", &flags.overrides);
  line.Integer("steps", "Turns of each contestant.", 1, 1 << 20, &flags.steps);
  line.Integer("warm_up", "Turns before these, which do not count.", 0, 1 << 20, &flags.warm_up);
  line.Integer("busy", "Threads of the program that compute beside the steps.", 0, 1 << 10, &flags.busy);
  line.Text("library", "FILE", "libshale.so for Python; without it, Python is left out.", &flags.python.library);
  line.Text("python", "PROGRAM", "The interpreter, which has numpy.", &flags.python.interpreter);
  line.Text("script", "FILE", "What Python runs.", &flags.python.script);
  line.Text("package", "FOLDER", "The folder of the package `shale`.", &flags.python.package);
  line.Footer(
      "bazel build -c opt //tools/package:libshale\n"
      "bazel run -c opt //tools/bench:embedding -- --library=.out/bin/tools/package/libshale.so\n"
      "\n"
      "Call it in the repository. The memory source gives the samples that the file has, and all contestants must\n"
      "compute the same losses.\n"
      "\n"
      "Exit codes: 0 measured; 1 failed; 2 wrong command line.");
  if (int exit_code; line.Done(argc, argv, &exit_code)) return exit_code;
  return shale::Run(flags);
}
