// search: checks by measuring that the search finds the fastest way to run a job that fits a budget.
//
//   bazel run -c opt //tools/bench:search -- --model=tools/bench/jobs/llama34m.textproto
//
// For each of several budgets, the way that the search takes runs in turns with others that fit the budget: the
// runner-up of each of its choices, the fastest ways that need less memory, and each preset of activation checkpointing
// with as large a micro-batch as fits.

#include "engine/plan/search/search.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/api/backend.h"
#include "engine/api/job.h"
#include "engine/run/calibrate/calibrate.h"
#include "engine/run/runtime/backend.h"
#include "engine/strings/printing.h"
#include "kernels/check.h"
#include "kernels/device/cpu/physical_memory.h"
#include "tools/bench/support.h"
#include "tools/bench/timed_job.h"
#include "tools/command_line.h"

namespace shale {
namespace {

struct Flags {
  std::vector<std::string> models;
  std::vector<std::string> set;
  int64_t budgets = 5;
  int64_t rivals = 7;
  int64_t steps = 6;
};

// A way to run a job.
struct Contestant {
  std::vector<Override> settings;
  std::string name;
  double predicted = 0;  // 0: not known.
  TimedJob timed;
};

std::vector<std::string> TextsOf(const std::vector<Override>& settings) {
  std::vector<std::string> texts;
  for (const Override& setting : settings) texts.push_back(setting.text());
  return texts;
}

// The ways that a search compares with the one that it takes.
class Contest {
 public:
  // `job` has the budget, `machine` the profile.
  Contest(const Job& job, const Machine& machine, const Flags& flags) : job_(job), machine_(machine), flags_(flags) {}

  // Chooses who takes part, the search's way first.
  absl::Status Enter() {
    SHALE_ASSIGN_OR_RETURN(const SearchResult found, FindFastest({.job = job_, .machine = machine_}));
    SHALE_RETURN_IF_ERROR(Add(found.best.overrides, "", found.best.cost.seconds).status());
    for (const SearchChoice& choice : found.choices) {
      if (!choice.runner_up) continue;
      std::vector<Override> settings = found.best.overrides;
      settings.insert(settings.end(), choice.runner_up->overrides.begin(), choice.runner_up->overrides.end());
      SHALE_RETURN_IF_ERROR(
          Add(settings, SettingsText(choice.runner_up->overrides, " "), choice.runner_up->cost.seconds).status());
    }
    SHALE_RETURN_IF_ERROR(AddPresets());
    for (const Variant& variant : found.front) {
      SHALE_RETURN_IF_ERROR(
          Add(variant.overrides, SettingsText(variant.overrides, " "), variant.cost.seconds).status());
    }
    return absl::OkStatus();
  }

  // Measures everybody in turns.
  absl::Status Run() {
    for (Contestant& one : contestants_) SHALE_RETURN_IF_ERROR(one.timed.trainer->Step().status());  // Warms up.
    for (int64_t step = 0; step < flags_.steps; ++step) {
      for (Contestant& one : contestants_) SHALE_RETURN_IF_ERROR(one.timed.Step());
    }
    for (Contestant& one : contestants_) one.timed.End();
    return absl::OkStatus();
  }

  const std::vector<Contestant>& contestants() const { return contestants_; }

 private:
  // Each preset of activation checkpointing, with the largest micro-batch of the job's global batch that fits.
  absl::Status AddPresets() {
    for (const absl::string_view preset : {"NONE", "ATTENTION", "CHEAP", "FFN", "BLOCK"}) {
      bool fits = false;
      for (int64_t size = job_.batch.global_batch / job_.sharding.ranks; size > 0 && !fits; size /= 2) {
        const std::vector<Override> settings = {{"activation_checkpointing.preset", std::string(preset)},
                                                {"batch.micro_batch", absl::StrCat(size)}};
        SHALE_ASSIGN_OR_RETURN(fits, Add(settings, SettingsText(settings, " "), 0));
      }
    }
    return absl::OkStatus();
  }

  // Adds a way, unless there are enough, it does not fit, or it is there already. Returns whether it fits.
  absl::StatusOr<bool> Add(const std::vector<Override>& settings, std::string name, double predicted) {
    const bool is_choice = contestants_.empty();
    if (std::ssize(contestants_) > flags_.rivals) return true;
    const absl::StatusOr<Job> job = WithOverrides(job_, TextsOf(settings));
    if (!job.ok() && !is_choice) return false;
    if (!job.ok()) return job.status();
    absl::StatusOr<TimedJob> timed = StartTimedJob(*job);
    const bool excluded = absl::IsInvalidArgument(timed.status()) || absl::IsResourceExhausted(timed.status());
    if (excluded && !is_choice) return false;
    if (!timed.ok()) return timed.status();
    const std::string resolved = ResolvedJobText(timed->job);
    for (const Contestant& other : contestants_) {
      if (ResolvedJobText(other.timed.job) == resolved) return true;
    }
    const int64_t bytes = timed->plan->arena_bytes * job->sharding.ranks;
    if (bytes_ + bytes > PhysicalMemoryBytes() / 2 && !is_choice) return true;  // More do not fit at once.
    bytes_ += bytes;
    contestants_.push_back({settings, std::move(name), predicted, *std::move(timed)});
    return true;
  }

  const Job job_;
  const Machine& machine_;
  const Flags& flags_;
  std::vector<Contestant> contestants_;
  int64_t bytes_ = 0;
};

// Measures the machine in the steps of such jobs, of every micro-batch that divides the batch of a rank.
absl::StatusOr<Machine> MachineFor(const Job& job, const Backend& backend, int64_t rounds) {
  std::vector<Job> jobs;
  for (int64_t size = 1; size <= job.batch.global_batch / job.sharding.ranks; size *= 2) {
    Job like = job;
    like.batch.micro_batch = size;
    like.batch.global_batch = 2 * size * job.sharding.ranks;
    like.sharding.accumulation = Accumulation::kAuto;
    for (Job& one : JobsLike(like)) jobs.push_back(std::move(one));
  }
  Machine machine = backend.machine();
  SHALE_ASSIGN_OR_RETURN(
      proto::MachineProfile profile,
      Calibrate(jobs, {.create_backend = CreateBackend, .rounds = static_cast<int>(rounds), .seconds = 1e6}));
  machine.profile = std::make_shared<const proto::MachineProfile>(std::move(profile));
  return machine;
}

// Prints what a contest showed. Returns the seconds of the search's way as a multiple of the fastest one's.
double Print(const std::vector<Contestant>& contestants, int64_t budget) {
  const auto measured = [](const Contestant& one) { return Median(one.timed.seconds); };
  const auto fastest =
      std::min_element(contestants.begin(), contestants.end(),
                       [&](const Contestant& a, const Contestant& b) { return measured(a) < measured(b); });
  const Contestant& choice = contestants[0];
  std::printf("%s: %s\n", FormatBytes(budget).c_str(),
              choice.settings.empty() ? "the job as it is" : SettingsText(choice.settings, " ").c_str());
  MarkdownTable table({{"way", true}, {"arena"}, {"predicted"}, {"measured"}, {"of the choice"}});
  for (const Contestant& one : contestants) {
    table.Add({&one == &choice ? "the search's choice" : one.name, FormatBytes(one.timed.plan->arena_bytes),
               one.predicted > 0 ? Time(one.predicted) : "", Time(measured(one)),
               Digits(measured(one) / measured(choice))});
  }
  std::printf("\n%s\n", table.ToString().c_str());
  std::fflush(stdout);
  return measured(choice) / measured(*fastest);
}

// Contests for a job with budgets that are evenly apart, from the least with which it runs to what the fastest way
// takes.
absl::Status Compare(const Job& job, const Flags& flags, std::vector<double>& ratios) {
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, CreateBackend(job));
  SHALE_ASSIGN_OR_RETURN(const Machine machine, MachineFor(job, *backend, flags.steps));
  SHALE_ASSIGN_OR_RETURN(const SearchResult all, FindFastest({.job = job, .machine = machine}));
  int64_t least = all.best.cost.arena_bytes;
  for (const Variant& variant : all.front) least = std::min(least, variant.cost.arena_bytes);
  const int64_t most = all.best.cost.arena_bytes;
  std::printf("## %s, %s to %s\n\n", job.name.c_str(), FormatBytes(least).c_str(), FormatBytes(most).c_str());
  for (int64_t i = 0; i < flags.budgets; ++i) {
    Job with_budget = job;
    with_budget.memory.budget_bytes = flags.budgets > 1 ? least + (most - least) * i / (flags.budgets - 1) : most;
    Contest contest(with_budget, machine, flags);
    SHALE_RETURN_IF_ERROR(contest.Enter());
    SHALE_RETURN_IF_ERROR(contest.Run());
    ratios.push_back(Print(contest.contestants(), with_budget.memory.budget_bytes));
  }
  return absl::OkStatus();
}

absl::Status Main(const Flags& flags) {
  std::printf("%s, %d processors, %s\n\n", ProcessorName().c_str(), ProcessorCount(), Today().c_str());
  std::vector<double> ratios;
  for (const std::string& path : flags.models) {
    SHALE_ASSIGN_OR_RETURN(Job job, LoadJob(path, flags.set));
    job.data = {.order = DataOrder::kSequential};
    job.lr_schedule.steps = 1000;
    SHALE_RETURN_IF_ERROR(DecideCpuMatMuls(job).status());
    SHALE_RETURN_IF_ERROR(Compare(job, flags, ratios));
  }
  const auto within = std::count_if(ratios.begin(), ratios.end(), [](double ratio) { return ratio <= 1.03; });
  std::printf("seconds of the choice against the fastest way: at most 1.03 in %td of %td cases, the largest %s\n",
              within, std::ssize(ratios), Digits(*std::max_element(ratios.begin(), ratios.end())).c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace shale

int main(int argc, char** argv) {
  shale::Flags flags;
  shale::CommandLine line("search",
                          "Measures, for several budgets, whether the search finds the fastest way to run a job.");
  line.List("model", "FILE", "A job, such as tools/bench/jobs/llama34m.textproto.", &flags.models).Required();
  line.List("set", "PATH=VALUE", "Sets a field of every job, as in --set=model.decoder.layers=2.", &flags.set);
  line.Integer("budgets", "For how many budgets to search.", 1, 100, &flags.budgets);
  line.Integer("rivals", "The most other ways for each budget.", 1, 100, &flags.rivals);
  line.Integer("steps", "Steps of each way that count, after one that does not.", 1, 1000, &flags.steps);
  if (int exit_code; line.Done(argc, argv, &exit_code)) return exit_code;
  const absl::Status status = shale::Main(flags);
  if (status.ok()) return shale::kExitOk;
  std::fprintf(stderr, "search: %s\n", std::string(status.message()).c_str());
  return shale::kExitFailed;
}
