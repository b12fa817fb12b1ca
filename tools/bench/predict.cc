// predict: compares predicted seconds of steps with measured ones. tools/bench_predict runs it.
//
// The cells of one shape take turns with the steps that calibrate for them, because many machines change speed from one
// second to the next. Profiles of other models, which were measured in other minutes, are scaled by the mean of probes.

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/api/backend.h"
#include "engine/plan/planner/step_facts.h"
#include "engine/plan/time/profile.h"
#include "engine/run/calibrate/calibrate.h"
#include "engine/run/calibrate/speeds.h"
#include "kernels/check.h"
#include "kernels/device/cpu/physical_memory.h"
#include "tools/bench/predict_cells.h"
#include "tools/bench/support.h"
#include "tools/bench/timed_job.h"
#include "tools/command_line.h"

namespace shale {
namespace {

struct Flags {
  std::vector<std::string> models;
  std::vector<std::string> set;
  int64_t cells = 60;
  int64_t steps = 6;
};

// Returns the profile of a machine that is as much slower as `now` is than `then`.
proto::MachineProfile Scaled(proto::MachineProfile profile, const ProbedSpeed& then, const ProbedSpeed& now) {
  const double arithmetic = now.matmul_seconds / then.matmul_seconds, memory = now.copy_seconds / then.copy_seconds;
  for (proto::MeasuredWork& work : *profile.mutable_works()) {
    work.set_seconds(work.seconds() * (work.flops() > 0 ? arithmetic : memory));
  }
  profile.set_between_steps_seconds(profile.between_steps_seconds() * memory);
  profile.set_peak_flops_f32(profile.peak_flops_f32() / arithmetic);
  profile.set_peak_flops_bf16(profile.peak_flops_bf16() / arithmetic);
  profile.set_copy_bytes_per_second(profile.copy_bytes_per_second() / memory);
  return profile;
}

// Set by the first SIGINT or SIGTERM, after which nothing further is measured. The second one ends the process.
volatile std::sig_atomic_t interrupted = 0;

void Interrupt(int signal) {
  interrupted = 1;
  std::signal(signal, SIG_DFL);
}

// A cell that runs.
struct Run {
  const Cell* cell;
  TimedJob timed;
  double predicted = 0, left_out = 0;

  double Predicted(const proto::MachineProfile& profile) const {
    const int64_t processes = cell->processes ? timed.job.sharding.ranks : 1;
    return PredictStep(timed.job, *timed.plan, profile, {.processes = processes}).step_seconds;
  }
};

double ErrorOf(double predicted, const Run& run) { return predicted / Mean(run.timed.seconds) - 1; }

std::string ErrorText(double error) { return absl::StrFormat("%+.1f %%", 100 * error); }

// Cells of one shape that run together, and what was measured in the same minutes.
struct Group {
  std::vector<Run> runs;
  proto::MachineProfile profile;
  ProbedSpeed speed;
};

// Measures a group, which gets its profile.
absl::Status Measure(int64_t rounds, Group& group) {
  // Cells that update in backward do not clip.
  const auto clips = [](const Run& run) { return run.cell->job.optimizer.update == UpdateTime::kAfterBackward; };
  const auto first = std::find_if(group.runs.begin(), group.runs.end(), clips);
  Job job = (first != group.runs.end() ? *first : group.runs[0]).cell->job;
  job.batch.global_batch = 2 * job.batch.micro_batch * job.sharding.ranks;
  job.sharding.accumulation = Accumulation::kAuto;
  job.optimizer.update = UpdateTime::kAfterBackward;
  for (Run& run : group.runs) SHALE_RETURN_IF_ERROR(run.timed.trainer->Step().status());  // Warms up.
  const auto step_cells = [&]() -> absl::Status {
    if (interrupted) return absl::CancelledError("interrupted");
    for (Run& run : group.runs) SHALE_RETURN_IF_ERROR(run.timed.Step());
    return absl::OkStatus();
  };
  SHALE_ASSIGN_OR_RETURN(group.profile, Calibrate(JobsLike(job), {.create_backend = CreateBackend,
                                                                  .rounds = static_cast<int>(rounds),
                                                                  .seconds = 1e6,
                                                                  .after_round = step_cells,
                                                                  .speed = &group.speed}));
  for (Run& run : group.runs) {
    run.predicted = run.Predicted(group.profile);
    run.timed.End();
  }
  return absl::OkStatus();
}

// Measures the cells, as many of a shape together as a quarter of the memory holds. Calibrating takes an eighth
// beside them, and the last one of a group may be large. If it is interrupted, returns the groups before that. Returns
// an error if no cell was measured.
absl::StatusOr<std::vector<Group>> MeasureGroups(const std::vector<Cell>& cells, int64_t rounds) {
  std::vector<Group> groups;
  Group now;
  absl::Status excluded = absl::CancelledError("interrupted before anything was measured");
  int64_t bytes = 0;
  const auto measure_now = [&]() -> absl::Status {
    if (now.runs.empty() || interrupted) return absl::OkStatus();
    const absl::Status measured = Measure(rounds, now);
    if (absl::IsCancelled(measured)) return absl::OkStatus();
    SHALE_RETURN_IF_ERROR(measured);
    groups.push_back(std::exchange(now, {}));
    bytes = 0;
    for (const Run& run : groups.back().runs) {
      std::fprintf(stderr, "%s: %s, error %s\n", run.cell->name.c_str(), Time(Mean(run.timed.seconds)).c_str(),
                   ErrorText(ErrorOf(run.predicted, run)).c_str());
    }
    return absl::OkStatus();
  };
  for (const Cell& cell : cells) {
    if (interrupted) break;
    if (!now.runs.empty() && now.runs[0].cell->shape != cell.shape) SHALE_RETURN_IF_ERROR(measure_now());
    absl::StatusOr<TimedJob> timed = StartTimedJob(cell.job, cell.processes);
    if (absl::IsInvalidArgument(timed.status())) {  // Settings that exclude each other.
      excluded = timed.status();
      LeaveOut(cell.name, excluded);
      continue;
    }
    if (!timed.ok()) return timed.status();
    bytes += timed->plan->arena_bytes * cell.job.sharding.ranks;
    now.runs.push_back({.cell = &cell, .timed = *std::move(timed)});
    if (bytes > PhysicalMemoryBytes() / 4) SHALE_RETURN_IF_ERROR(measure_now());
  }
  SHALE_RETURN_IF_ERROR(measure_now());
  if (groups.empty()) return excluded;
  return groups;
}

// Predicts each cell from what was measured of the other models.
void PredictLeftOut(std::vector<Group>& groups) {
  for (Group& group : groups) {
    proto::MachineProfile others;
    for (const Group& other : groups) {
      if (other.runs[0].cell->model == group.runs[0].cell->model) continue;
      MergeProfile(Scaled(other.profile, other.speed, group.speed), &others);
    }
    if (others.works_size() == 0) continue;
    for (Run& run : group.runs) run.left_out = run.Predicted(others);
  }
}

// Returns a line about the sizes of some errors.
std::string Summary(const std::string& what, std::vector<double> errors) {
  if (errors.empty()) return "";
  for (double& error : errors) error = std::abs(error);
  const auto within = std::count_if(errors.begin(), errors.end(), [](double e) { return e <= 0.1; });
  return absl::StrFormat("%s: %d cells, median error %.1f %%, %.0f %% of them within 10 %%, the largest %.1f %%\n",
                         what, errors.size(), 100 * Median(errors),
                         100 * static_cast<double>(within) / static_cast<double>(errors.size()),
                         100 * *std::max_element(errors.begin(), errors.end()));
}

// How many times as long as another job a job takes, in logarithms, by steps that took turns.
struct LogRatio {
  double mean = 0, standard_error = 0;
};
LogRatio LogRatioOf(const std::vector<double>& seconds, const std::vector<double>& other) {
  const auto count = static_cast<double>(seconds.size());
  LogRatio ratio;
  double squares = 0;
  for (size_t i = 0; i < seconds.size(); ++i) {
    const double log = std::log(seconds[i] / other[i]);
    ratio.mean += log / count;
    squares += log * log;
  }
  const double variance = std::max(0.0, squares / count - ratio.mean * ratio.mean);
  ratio.standard_error = count > 1 ? std::sqrt(variance / (count - 1)) : std::numeric_limits<double>::infinity();
  return ratio;
}

// Returns a line about alternatives that took turns: cells of the same model and dtype on as many ranks, with the same
// tokens. Those count of which the steps show, beyond two standard errors, that they differ by more than 8 %.
std::string OrderSummary(const std::vector<Group>& groups) {
  const double different = std::log(1.08);
  int64_t pairs = 0, right = 0;
  for (const Group& group : groups) {
    for (size_t i = 0; i < group.runs.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        const Run &a = group.runs[i], &b = group.runs[j];
        if (a.cell->alternatives != b.cell->alternatives) continue;
        const LogRatio measured = LogRatioOf(a.timed.seconds, b.timed.seconds);
        if (std::abs(measured.mean) - 2 * measured.standard_error < different) continue;
        ++pairs;
        right += (measured.mean > 0) == (a.predicted > b.predicted);
      }
    }
  }
  if (pairs == 0) return "";
  return absl::StrFormat("alternatives that surely differ by more than 8 %%: %d of %d pairs are in the right order\n",
                         right, pairs);
}

void Print(const std::vector<Group>& groups) {
  MarkdownTable table({{"cell", true}, {"measured"}, {"spread"}, {"predicted"}, {"error"}, {"left out"}});
  std::vector<double> errors, left_out_errors;
  for (const Group& group : groups) {
    for (const Run& run : group.runs) {
      errors.push_back(ErrorOf(run.predicted, run));
      if (run.left_out > 0) left_out_errors.push_back(ErrorOf(run.left_out, run));
      const auto [least, most] = std::minmax_element(run.timed.seconds.begin(), run.timed.seconds.end());
      const double measured = Mean(run.timed.seconds);
      table.Add({run.cell->name, Time(measured), absl::StrFormat("%.0f %%", 100 * (*most - *least) / measured),
                 Time(run.predicted), ErrorText(errors.back()),
                 run.left_out > 0 ? ErrorText(left_out_errors.back()) : ""});
    }
  }
  std::printf("%s\n%s%s%s", table.ToString().c_str(), Summary("calibrated", errors).c_str(),
              Summary("the model left out of the profile", left_out_errors).c_str(), OrderSummary(groups).c_str());
}

absl::Status Main(const Flags& flags) {
  SHALE_ASSIGN_OR_RETURN(std::vector<Cell> cells, CellsOf(flags.models, flags.set, flags.cells));
  for (Cell& cell : cells) SHALE_RETURN_IF_ERROR(DecideCpuMatMuls(cell.job).status());
  std::signal(SIGINT, Interrupt);
  std::signal(SIGTERM, Interrupt);
  SHALE_ASSIGN_OR_RETURN(std::vector<Group> groups, MeasureGroups(cells, flags.steps));
  PredictLeftOut(groups);
  std::printf("%s, %d processors, %s\n\n", ProcessorName().c_str(), ProcessorCount(), Today().c_str());
  Print(groups);
  return absl::OkStatus();
}

}  // namespace
}  // namespace shale

int main(int argc, char** argv) {
  shale::Flags flags;
  shale::CommandLine line("predict", "Compares the predicted seconds of steps with measured ones, cell by cell.");
  line.List("model", "FILE", "A job whose shape is measured, such as tools/bench/jobs/llama34m.textproto.",
            &flags.models)
      .Required();
  line.List("set", "PATH=VALUE", "Sets a field of every model, as in --set=model.decoder.layers=2.", &flags.set);
  line.Integer("cells", "How many cells to measure: so many at random, the same ones each time.", 1, 10000,
               &flags.cells);
  line.Integer("steps", "Steps of each cell that count, after one that does not.", 1, 1000, &flags.steps);
  if (int exit_code; line.Done(argc, argv, &exit_code)) return exit_code;
  const absl::Status status = shale::Main(flags);
  if (status.ok()) return shale::kExitOk;
  std::fprintf(stderr, "predict: %s\n", std::string(status.message()).c_str());
  return shale::kExitFailed;
}
