#include "tools/bench/sweep.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "engine/api/backend.h"
#include "engine/api/job.h"
#include "engine/api/trainer.h"
#include "kernels/check.h"
#include "kernels/dtype.h"
#include "tools/bench/result_lines.h"
#include "tools/bench/support.h"
#include "tools/command_line.h"

namespace shale {
namespace {

using Clock = std::chrono::steady_clock;

struct Flags {
  std::string job;
  std::vector<std::string> overrides, vary;
  int64_t steps = 4, warm_up = 2;
  double seconds = 0;
  std::string json;
};

// A field and the values that it takes in turn.
struct Axis {
  std::string field;
  std::vector<std::string> values;
};

struct Measured {
  std::vector<double> seconds;  // Of each step.
  double start_seconds = 0;     // From nothing to the first step that counts.
  double tokens_per_second = 0, mfu = 0;
  int64_t planned_bytes = 0, measured_bytes = 0;
};

double Since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

absl::StatusOr<std::vector<Axis>> ParseAxes(const std::vector<std::string>& vary) {
  std::vector<Axis> axes;
  for (const std::string& one : vary) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(one, absl::MaxSplits('=', 1));
    if (parts.first.empty() || parts.second.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("--vary: wanted FIELD=VALUE|VALUE|..., found ", one));
    }
    axes.push_back({parts.first, absl::StrSplit(parts.second, '|')});
  }
  return axes;
}

// Returns every combination of the values, as overrides of a job. The last axis changes first.
std::vector<std::vector<std::string>> Settings(const std::vector<Axis>& axes) {
  std::vector<std::vector<std::string>> settings = {{}};
  for (const Axis& axis : axes) {
    std::vector<std::vector<std::string>> longer;
    for (const std::vector<std::string>& setting : settings) {
      for (const std::string& value : axis.values) {
        longer.push_back(setting);
        longer.back().push_back(absl::StrCat(axis.field, "=", value));
      }
    }
    settings = std::move(longer);
  }
  return settings;
}

std::string TextOf(const std::vector<std::string>& setting) {
  return setting.empty() ? "the job as it is" : absl::StrJoin(setting, " ");
}

absl::StatusOr<Measured> Measure(const Flags& flags, const std::vector<std::string>& setting) {
  const Clock::time_point begin = Clock::now();
  std::vector<std::string> overrides = flags.overrides;
  overrides.insert(overrides.end(), setting.begin(), setting.end());
  SHALE_ASSIGN_OR_RETURN(const Job job, LoadJob(flags.job, overrides, ModelFrom::kJobAndData));
  PrepareEnvironment(job);
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, CreateBackend(job));
  double peak_flops = job.telemetry.peak_flops;
  if (peak_flops == 0) {
    const DType dtype = DTypeOf(job.precision.compute);
    peak_flops = backend->NominalPeakFlops(dtype) / static_cast<double>(backend->RanksSharing(job.sharding.ranks));
  }
  // Without a folder for checkpoints, nothing is saved.
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                         Trainer::Create(job, {.backend = backend.get(), .peak_flops = peak_flops}));
  if (trainer->total_steps() < flags.warm_up + flags.steps) {
    return absl::InvalidArgumentError(absl::StrCat("the job has ", trainer->total_steps(), " steps, and ",
                                                   flags.warm_up + flags.steps,
                                                   " are wanted; set lr_schedule.steps, or less --steps"));
  }
  Measured measured;
  std::vector<double> mfu;
  for (int64_t step = 0; step < flags.warm_up + flags.steps; ++step) {
    if (step == flags.warm_up) measured.start_seconds = Since(begin);
    SHALE_ASSIGN_OR_RETURN(const StepReport report, trainer->Step());
    measured.planned_bytes = report.peak_bytes_planned;
    measured.measured_bytes = report.peak_bytes_measured;
    if (step < flags.warm_up) continue;
    measured.seconds.push_back(report.seconds);
    mfu.push_back(report.mfu);
  }
  measured.tokens_per_second =
      static_cast<double>(job.batch.global_batch * job.batch.sequence_length) / Median(measured.seconds);
  measured.mfu = Median(mfu);
  return measured;
}

// Returns whether a setting is at fault, so that others may still run. After any other error, such as that of a lost
// device, they may not.
bool IsOfSetting(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status) || absl::IsFailedPrecondition(status) ||
         absl::IsUnimplemented(status) || absl::IsNotFound(status);
}

// The results of the settings, and which was the best.
class Report {
 public:
  absl::Status Open(const std::string& json) { return lines_.Open(json); }

  absl::Status Add(const std::vector<std::string>& setting, const Measured& measured) {
    const double median = Median(measured.seconds);
    const auto [least, most] = std::minmax_element(measured.seconds.begin(), measured.seconds.end());
    const std::string text = absl::StrFormat(
        "%9.0f tok/s  %s %8.1f ms (%.1f to %.1f)  planned %s, measured %s  start %.1f s  %s",
        measured.tokens_per_second, measured.mfu > 0 ? absl::StrFormat("mfu %.1f%%", 100 * measured.mfu) : "",
        1e3 * median, 1e3 * *least, 1e3 * *most, Megabytes(static_cast<double>(measured.planned_bytes)),
        Megabytes(static_cast<double>(measured.measured_bytes)), measured.start_seconds, TextOf(setting));
    if (measured.tokens_per_second > best_) {
      best_ = measured.tokens_per_second;
      best_setting_ = TextOf(setting);
    }
    return lines_.Add(text, Line(setting)
                                .Add("tokens_per_second", measured.tokens_per_second)
                                .Add("mfu", measured.mfu)
                                .Add("seconds", median)
                                .Add("least_seconds", *least)
                                .Add("most_seconds", *most)
                                .Add("steps", std::ssize(measured.seconds))
                                .Add("start_seconds", measured.start_seconds)
                                .Add("planned_bytes", measured.planned_bytes)
                                .Add("measured_bytes", measured.measured_bytes));
  }

  absl::Status Add(const std::vector<std::string>& setting, absl::string_view why_not) {
    const std::string line = absl::StrReplaceAll(why_not, {{"\n", "; "}});
    return lines_.Add(absl::StrCat("    not measured: ", TextOf(setting), ": ", line),
                      Line(setting).Add("not_measured", line));
  }

  // Says which setting was the best.
  void End() const {
    if (best_ > 0) std::printf("best: %.0f tok/s  %s\n", best_, best_setting_.c_str());
  }

 private:
  static JsonObject Line(const std::vector<std::string>& setting) {
    JsonObject line;
    line.Add("setting", TextOf(setting));
    return line;
  }

  ResultLines lines_;
  double best_ = 0;
  std::string best_setting_;
};

int Fail(const absl::Status& status, int exit_code) {
  std::fprintf(stderr, "sweep: %s\n", std::string(status.message()).c_str());
  return exit_code;
}

int Run(const Flags& flags) {
  const Clock::time_point begin = Clock::now();
  const absl::StatusOr<std::vector<Axis>> axes = ParseAxes(flags.vary);
  if (!axes.ok()) return Fail(axes.status(), kExitUsage);
  Report report;
  if (const absl::Status status = report.Open(flags.json); !status.ok()) return Fail(status, kExitUsage);
  double longest = 0;
  int64_t measured_settings = 0;
  absl::Status failed;
  for (const std::vector<std::string>& setting : Settings(*axes)) {
    absl::Status written;
    if (!failed.ok()) {
      written = report.Add(setting, "an earlier setting failed");
    } else if (flags.seconds > 0 && Since(begin) + longest > flags.seconds) {
      written = report.Add(setting, "no time was left");
    } else {
      const Clock::time_point of_setting = Clock::now();
      const absl::StatusOr<Measured> measured = Measure(flags, setting);
      longest = std::max(longest, Since(of_setting));
      measured_settings += measured.ok();
      written = measured.ok() ? report.Add(setting, *measured) : report.Add(setting, measured.status().message());
      if (!measured.ok() && !IsOfSetting(measured.status())) failed = measured.status();
    }
    if (!written.ok()) return Fail(written, kExitFailed);
  }
  report.End();
  if (!failed.ok()) return Fail(failed, kExitFailed);
  return measured_settings > 0 ? kExitOk : Fail(absl::NotFoundError("no setting could be measured"), kExitFailed);
}

}  // namespace

int BenchSweep(int argc, char** argv) {
  Flags flags;
  CommandLine line(
      "sweep",
      "Measures steps of a job in every combination of the values that --vary names, one after the other in "
      "one process, and writes a line for each as soon as it is measured. Nothing is saved.");
  line.Text("job", "FILE", "The job spec, text or binary.", &flags.job).Required();
  line.List("set", "PATH=VALUE", "Overrides a field of the job in all settings.", &flags.overrides);
  line.List("vary", "PATH=VALUE|VALUE|...", "The values that a field takes. The last of several fields changes first.",
            &flags.vary);
  line.Integer("steps", "Steps to measure in each setting; the median counts.", 1, 1 << 20, &flags.steps);
  line.Integer("warm_up", "Steps before these.", 0, 1 << 20, &flags.warm_up);
  line.Number("seconds",
              "Begins no setting that would not end by then, if it took as long as the longest. 0: no limit.", 0, 1e9,
              &flags.seconds);
  line.Text("json", "FILE", "Writes a line of JSON for each setting, too.", &flags.json);
  line.Footer(
      "A setting that is refused, as one that does not fit, has a line that says why. Exit codes: 0 at least one was "
      "measured; 1 none was, or one failed; 2 wrong command line.");
  if (int exit_code; line.Done(argc, argv, &exit_code)) return exit_code;
  return Run(flags);
}

}  // namespace shale
