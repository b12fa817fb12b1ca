// predict: compares predicted seconds of steps with measured ones. tools/bench_predict runs it.
//
// First calibrates on the shapes of all cells, then runs their steps in turns. A probe (SpeedProbe) before and after
// each step says how fast the machine was then, and profiles are scaled by it: these machines change speed from one
// minute to the next.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/api/backend.h"
#include "engine/api/trainer.h"
#include "engine/files/io/file.h"
#include "engine/plan/planner/step_facts.h"
#include "engine/plan/time/profile.h"
#include "engine/run/calibrate/calibrate.h"
#include "engine/run/calibrate/random_tokens.h"
#include "engine/run/calibrate/speeds.h"
#include "kernels/check.h"
#include "kernels/device/cpu/physical_memory.h"
#include "tools/bench/predict_cells.h"
#include "tools/bench/support.h"
#include "tools/command_line.h"

namespace shale {
namespace {

struct Flags {
  std::vector<std::string> models;
  std::vector<std::string> set;
  int64_t cells = 60;
  int64_t steps = 4;
  std::string profiles;
};

// How fast the machine was in the first probe, to which all profiles are scaled.
struct Speeds {
  SpeedProbe& probe;
  ProbedSpeed first;
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

// Measures the shapes of the cells. Returns a profile for each model, scaled to the speed of the first probe.
absl::StatusOr<std::map<std::string, proto::MachineProfile>> CalibrateModels(const std::vector<Cell>& cells,
                                                                             const Speeds& speeds) {
  std::map<std::string, std::vector<Job>> jobs;
  std::set<std::string> known;
  for (const Cell& cell : cells) {
    if (!known.insert(cell.shape).second) continue;
    Job job = cell.job;
    job.batch.global_batch = 2 * job.batch.micro_batch * job.sharding.ranks;
    job.sharding.accumulation = Accumulation::kAuto;
    job.optimizer.update = UpdateTime::kAfterBackward;
    for (Job& each : JobsLike(job)) jobs[cell.model].push_back(std::move(each));
  }
  std::map<std::string, proto::MachineProfile> profiles;
  for (const auto& [model, of_model] : jobs) {
    const auto tell = [&](absl::string_view line) {
      std::fprintf(stderr, "calibrate %s: %s\n", model.c_str(), std::string(line).c_str());
    };
    ProbedSpeed speed;
    SHALE_ASSIGN_OR_RETURN(
        const proto::MachineProfile profile,
        Calibrate(of_model, {.create_backend = CreateBackend, .seconds = 1e6, .speed = &speed, .progress = tell}));
    profiles[model] = Scaled(profile, speed, speeds.first);
  }
  return profiles;
}

// A cell that runs.
struct Run {
  const Cell* cell;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<RandomTokens> data;
  std::unique_ptr<Trainer> trainer;
  std::vector<double> measured, predicted, left_out;  // Of each step.
};

absl::StatusOr<Run> Start(const Cell& cell) {
  Run run{.cell = &cell, .data = std::make_unique<RandomTokens>(cell.job)};
  SHALE_ASSIGN_OR_RETURN(run.backend, CreateBackend(cell.job));
  SHALE_ASSIGN_OR_RETURN(run.trainer,
                         Trainer::Create(cell.job, {.backend = run.backend.get(), .data = run.data.get()}));
  return run;
}

// Profiles to predict a cell with: of all models, and of all but its own.
struct Profiles {
  proto::MachineProfile all, others;
};

Profiles ProfilesFor(const std::string& model, const std::map<std::string, proto::MachineProfile>& by_model) {
  Profiles profiles;
  for (const auto& [name, profile] : by_model) {
    MergeProfile(profile, &profiles.all);
    if (name != model) MergeProfile(profile, &profiles.others);
  }
  return profiles;
}

absl::Status MeasureStep(const Profiles& profiles, const Speeds& speeds, Run& run) {
  SHALE_ASSIGN_OR_RETURN(const ProbedSpeed before, speeds.probe.Probe());
  SHALE_ASSIGN_OR_RETURN(const StepReport report, run.trainer->Step());
  SHALE_ASSIGN_OR_RETURN(const ProbedSpeed after, speeds.probe.Probe());
  const ProbedSpeed now{(before.matmul_seconds + after.matmul_seconds) / 2,
                        (before.copy_seconds + after.copy_seconds) / 2};
  const auto predict = [&](const proto::MachineProfile& profile) {
    return PredictStep(run.trainer->job(), run.trainer->plan(), Scaled(profile, speeds.first, now)).step_seconds;
  };
  run.measured.push_back(report.seconds);
  run.predicted.push_back(predict(profiles.all));
  if (profiles.others.works_size() > 0) run.left_out.push_back(predict(profiles.others));
  return absl::OkStatus();
}

// Runs the cells, as many together as half of the memory holds, and each in its turn.
absl::StatusOr<std::vector<Run>> RunInTurns(const std::vector<Cell>& cells, int64_t steps, const Speeds& speeds,
                                            const std::map<std::string, proto::MachineProfile>& by_model) {
  std::vector<Run> done, now;
  int64_t bytes = 0;
  const auto run_now = [&]() -> absl::Status {
    for (Run& run : now) SHALE_RETURN_IF_ERROR(run.trainer->Step().status());  // Warms up.
    for (int64_t step = 0; step < steps; ++step) {
      for (Run& run : now) {
        SHALE_RETURN_IF_ERROR(MeasureStep(ProfilesFor(run.cell->model, by_model), speeds, run));
      }
    }
    for (Run& run : now) {
      run.trainer.reset();
      done.push_back(std::move(run));
    }
    std::fprintf(stderr, "%zu cells measured\n", done.size());
    now.clear();
    bytes = 0;
    return absl::OkStatus();
  };
  for (const Cell& cell : cells) {
    absl::StatusOr<Run> run = Start(cell);
    if (absl::IsInvalidArgument(run.status())) continue;  // Settings that exclude each other.
    if (!run.ok()) return run.status();
    bytes += run->trainer->plan().arena_bytes * cell.job.sharding.ranks;
    now.push_back(*std::move(run));
    if (bytes > PhysicalMemoryBytes() / 4) SHALE_RETURN_IF_ERROR(run_now());
  }
  SHALE_RETURN_IF_ERROR(run_now());
  return done;
}

std::vector<double> ErrorsOf(const std::vector<double>& predicted, const std::vector<double>& measured) {
  std::vector<double> errors;
  for (size_t i = 0; i < predicted.size(); ++i) errors.push_back(predicted[i] / measured[i] - 1);
  return errors;
}

std::string ErrorText(double error) { return absl::StrFormat("%+.1f %%", 100 * error); }

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

// Returns a line about alternatives: cells of the same model and dtype on as many ranks, with the same tokens.
std::string OrderSummary(const std::vector<Run>& runs) {
  constexpr double kDifferent = 1.08;
  int64_t pairs = 0, right = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (runs[i].cell->alternatives != runs[j].cell->alternatives) continue;
      const double measured = Median(runs[i].measured) / Median(runs[j].measured);
      if (std::max(measured, 1 / measured) < kDifferent) continue;
      ++pairs;
      right += (measured > 1) == (Median(runs[i].predicted) > Median(runs[j].predicted));
    }
  }
  if (pairs == 0) return "";
  return absl::StrFormat("alternatives that differ by more than 8 %%: %d of %d pairs are in the right order\n", right,
                         pairs);
}

void Print(const std::vector<Run>& runs) {
  MarkdownTable table({{"cell", true}, {"measured"}, {"spread"}, {"predicted"}, {"error"}, {"left out"}});
  std::vector<double> errors, left_out_errors;
  for (const Run& run : runs) {
    errors.push_back(Median(ErrorsOf(run.predicted, run.measured)));
    const auto [least, most] = std::minmax_element(run.measured.begin(), run.measured.end());
    const double measured = Median(run.measured);
    std::string left_out;
    if (!run.left_out.empty()) {
      left_out_errors.push_back(Median(ErrorsOf(run.left_out, run.measured)));
      left_out = ErrorText(left_out_errors.back());
    }
    table.Add({run.cell->name, Time(measured), absl::StrFormat("%.0f %%", 100 * (*most - *least) / measured),
               Time(Median(run.predicted)), ErrorText(errors.back()), left_out});
  }
  std::printf("%s\n%s%s%s", table.ToString().c_str(), Summary("calibrated", errors).c_str(),
              Summary("the model left out of the profile", left_out_errors).c_str(), OrderSummary(runs).c_str());
}

absl::Status Main(const Flags& flags) {
  SHALE_ASSIGN_OR_RETURN(std::vector<Cell> cells, CellsOf(flags.models, flags.set, flags.cells));
  for (Cell& cell : cells) SHALE_RETURN_IF_ERROR(DecideCpuProducts(cell.job).status());
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, CreateBackend(cells[0].job));
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<SpeedProbe> probe, SpeedProbe::Create(*backend));
  SHALE_RETURN_IF_ERROR(probe->Probe().status());  // Warms up.
  SHALE_ASSIGN_OR_RETURN(const ProbedSpeed first, probe->Probe());
  const Speeds speeds{*probe, first};
  SHALE_ASSIGN_OR_RETURN(const auto by_model, CalibrateModels(cells, speeds));
  if (!flags.profiles.empty()) {
    for (const auto& [model, profile] : by_model) {
      SHALE_RETURN_IF_ERROR(WriteFileDurably(absl::StrCat(flags.profiles, model, ".textproto"), PrintProfile(profile)));
    }
  }
  SHALE_ASSIGN_OR_RETURN(const std::vector<Run> runs, RunInTurns(cells, flags.steps, speeds, by_model));
  std::printf("%s, %d processors, %s\n\n", ProcessorName().c_str(), ProcessorCount(), Today().c_str());
  Print(runs);
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
  line.Integer("cells", "How many cells to measure, spread evenly over all of them.", 1, 10000, &flags.cells);
  line.Integer("steps", "Steps of each cell that count, after one that does not.", 1, 1000, &flags.steps);
  line.Text("profiles", "PREFIX", "Write the profile of each model to PREFIX<model>.textproto.", &flags.profiles);
  if (int exit_code; line.Done(argc, argv, &exit_code)) return exit_code;
  const absl::Status status = shale::Main(flags);
  if (status.ok()) return shale::kExitOk;
  std::fprintf(stderr, "predict: %s\n", std::string(status.message()).c_str());
  return shale::kExitFailed;
}
