// Laws of calibrating: what is measured covers the steps that it is for, and a run is held to it.
#include "engine/run/calibrate/calibrate.h"

#include <filesystem>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "engine/api/backend.h"
#include "engine/api/job.h"
#include "engine/api/plan.h"
#include "engine/api/trainer.h"
#include "engine/compile/program/issues.h"
#include "engine/plan/time/profile.h"
#include "engine/plan/time/work.h"
#include "engine/run/calibrate/random_tokens.h"
#include "engine/run/calibrate/speeds.h"
#include "engine/run/runtime/work_times.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Value;

// Four layers and three micro-batches, of which calibrating takes two.
Job SmallJobOfTwoRanks() {
  const absl::StatusOr<Job> job = ParseJobText(R"(
      model { decoder { family: LLAMA vocabulary: 61 width: 24 layers: 4 heads: 2 } } data { path: "none" }
      batch { global_batch: 12 micro_batch: 2 sequence_length: 16 } sharding { ranks: 2 } optimizer { }
      activation_checkpointing { preset: BLOCK } lr_schedule { steps: 100 }
      runtime { threads_per_rank: 1 cpu_matmuls: PACKED })",
                                               "job");
  EXPECT_TRUE(job.ok()) << job.status();
  return *job;
}

// What was measured of the small job, once for all tests.
const proto::MachineProfile& Measured() {
  static const auto* const profile = [] {
    absl::StatusOr<proto::MachineProfile> measured =
        Calibrate(JobsLike(SmallJobOfTwoRanks()), {.create_backend = CreateBackend, .rounds = 1});
    EXPECT_TRUE(measured.ok()) << measured.status();
    return new proto::MachineProfile(*std::move(measured));
  }();
  return *profile;
}

std::set<std::string> WorksOf(const Job& job) {
  const std::unique_ptr<Backend> backend = *CreateBackend(job);
  const absl::StatusOr<ResolvedJob> resolved = ResolveJob(job, {}, backend->machine().WithoutBudget());
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  std::set<std::string> works;
  const StepProgram& program = resolved->plan.train.step.program;
  for (const Issue& issue : IssuesOf(program)) {
    Instruction issued = program.instructions[issue.id];
    TakeForm(issued, issue.first_iteration());
    works.insert(WorkText(WorkOf(issued, resolved->plan.options.mesh)));
  }
  return works;
}

// Fewer layers and micro-batches have all works of the job, whatever accumulation it takes.
TEST(Calibrate, MeasuresEveryWorkOfAJob) {
  std::set<std::string> measured, between_processes;
  for (const proto::MeasuredWork& work : Measured().works()) {
    EXPECT_EQ(work.ranks_on_host(), 2);
    const absl::string_view kind = absl::StripSuffix(work.kind(), " processes");
    (IsBetweenProcesses(work.kind()) ? between_processes : measured)
        .insert(absl::StrCat(kind, " ", absl::StrJoin(work.sizes(), " x ")));
  }
  Job job = SmallJobOfTwoRanks();
  for (const Accumulation accumulation :
       {Accumulation::kAuto, Accumulation::kSharded, Accumulation::kNoSync, Accumulation::kLayered}) {
    job.sharding.accumulation = accumulation;
    const std::set<std::string> works = WorksOf(job);
    EXPECT_GT(works.size(), 20u);
    int collectives = 0;
    for (const std::string& work : works) {
      EXPECT_TRUE(measured.count(work)) << work;
      if (!Value(work, ContainsRegex("^(AllGather|ReduceScatterSum|AllReduceSum) "))) continue;
      ++collectives;
      EXPECT_TRUE(between_processes.count(work)) << work;
    }
    EXPECT_GT(collectives, 2);
  }
}

// Small jobs end before the time is up. They are measured as they are written: a search needs what is measured here.
TEST(Calibrate, RunsAllRoundsOfAJob) {
  Job job = SmallJobOfTwoRanks();
  job.runtime.search = {"*"};
  job.sharding.accumulation = Accumulation::kSharded;
  CalibrateOptions options{.create_backend = CreateBackend, .rounds = 12};
  int rounds = 0;
  options.after_round = [&] {
    ++rounds;
    return absl::OkStatus();
  };
  const absl::StatusOr<proto::MachineProfile> measured = Calibrate(JobsLike(job), options);
  EXPECT_TRUE(measured.ok()) << measured.status();
  EXPECT_EQ(rounds, 12);
}

// Jobs that do not take turns run their rounds one after another. What takes turns with them runs once for each round
// of one job, however many jobs there are, and evenly beside all of them.
TEST(Calibrate, RunsAfterAsManyRoundsAsOneJobHas) {
  Job job = SmallJobOfTwoRanks();
  job.sharding.accumulation = Accumulation::kSharded;
  const Job one = JobsLike(job).front();
  for (const int jobs : {2, 3}) {
    int rounds = 0;
    std::vector<int> rounds_at_start;
    CalibrateOptions options{.create_backend = CreateBackend, .rounds = 4, .bytes_together = 1};
    options.after_round = [&] {
      ++rounds;
      return absl::OkStatus();
    };
    options.progress = [&](absl::string_view) { rounds_at_start.push_back(rounds); };
    const auto measured = Calibrate(std::vector<Job>(static_cast<size_t>(jobs), one), options);
    EXPECT_TRUE(measured.ok()) << measured.status();
    EXPECT_EQ(rounds, 4);
    EXPECT_EQ(rounds_at_start, jobs == 2 ? (std::vector<int>{0, 2, 4}) : (std::vector<int>{0, 1, 2, 4}));
  }
}

TEST(Calibrate, MeasuresADiskAndLeavesNothingThere) {
  const std::filesystem::path folder = absl::StrCat(::testing::TempDir(), "/calibrated_disk");
  EXPECT_TRUE(absl::IsNotFound(WriteBytesPerSecond(folder).status()));
  std::filesystem::create_directories(folder);
  const absl::StatusOr<double> speed = WriteBytesPerSecond(folder);
  ASSERT_TRUE(speed.ok()) << speed.status();
  EXPECT_GT(*speed, 1e6);
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

TEST(Calibrate, SaysWhichMachineItMeasured) {
  const proto::MachineProfile& profile = Measured();
  EXPECT_EQ(profile.processor(), KeyOfThisHost().processor);
  EXPECT_EQ(profile.device(), "CPU");
  EXPECT_GT(profile.peak_flops_f32(), 1e8);
  EXPECT_GT(profile.copy_bytes_per_second(), 1e8);
  EXPECT_GT(profile.issue_seconds(), 0);
  EXPECT_TRUE(CheckProfile(profile, "measured").ok());
}

TEST(Calibrate, TheCacheGrowsByWhatIsMeasured) {
  const std::string cache = absl::StrCat(::testing::TempDir(), "/calibrate_cache");
  proto::MachineProfile first = Measured(), second = Measured();
  second.clear_works();
  *second.add_works() = first.works(0);
  second.mutable_works(0)->set_ranks_on_host(7);
  ASSERT_TRUE(KeepProfile(first, cache).ok());
  ASSERT_TRUE(KeepProfile(second, cache).ok());
  const absl::StatusOr<proto::MachineProfile> kept = CachedProfile(cache, KeyOfThisHost());
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->works_size(), first.works_size() + 1);
}

// Runs `steps` steps of the small job, held to `machine`. Returns the warnings.
std::vector<std::string> WarningsOf(const proto::MachineProfile& machine, int steps, std::vector<double>* losses,
                                    std::string* step_time) {
  const Job job = SmallJobOfTwoRanks();
  RandomTokens data(job);
  const std::unique_ptr<Backend> backend = *CreateBackend(job);
  Job own = job;
  own.data = {.order = DataOrder::kSequential};
  const absl::StatusOr<std::unique_ptr<Trainer>> trainer =
      Trainer::Create(own, {.backend = backend.get(), .data = &data, .machine = &machine});
  EXPECT_TRUE(trainer.ok()) << trainer.status();
  std::vector<std::string> warnings;
  for (int step = 0; step < steps; ++step) {
    const absl::StatusOr<StepReport> report = (*trainer)->Step();
    EXPECT_TRUE(report.ok()) << report.status();
    if (losses != nullptr) losses->push_back(report->loss);
    for (const std::string& warning : (*trainer)->warnings()) warnings.push_back(warning);
  }
  if (step_time != nullptr) *step_time = (*trainer)->devices().step_time;
  return warnings;
}

// A machine on which each work takes `factor` of the time.
proto::MachineProfile Slower(proto::MachineProfile machine, double factor) {
  for (proto::MeasuredWork& work : *machine.mutable_works()) work.set_seconds(work.seconds() * factor);
  machine.set_between_steps_seconds(machine.between_steps_seconds() * factor);
  machine.set_issue_seconds(machine.issue_seconds() * factor);
  return machine;
}

// The job is as slow as it is, so a machine that is said to be a hundred times as fast is silently slow.
TEST(StepContract, ARunThatIsSlowerThanPredictedNamesWhatIsSlower) {
  std::vector<double> losses, losses_of_slow;
  std::string step_time;
  EXPECT_THAT(WarningsOf(Slower(Measured(), 1000), 21, &losses, &step_time), IsEmpty());
  EXPECT_THAT(step_time, HasSubstr("a step was predicted to take "));
  EXPECT_THAT(step_time, HasSubstr(" in the mean, -"));
  const std::vector<std::string> warnings = WarningsOf(Slower(Measured(), 0.01), 21, &losses_of_slow, nullptr);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("for 20 steps a step has taken more than "));
  EXPECT_THAT(warnings[0], ContainsRegex("; in the last one, on rank [01], which worked longest, .* took "));
  EXPECT_THAT(warnings[0], HasSubstr(" instead of "));
  EXPECT_EQ(losses, losses_of_slow) << "looking at a step changes bits";
}

TEST(StepContract, WhatWasNotMeasuredIsNotPromised) {
  proto::MachineProfile machine = Measured();
  machine.clear_works();
  std::string step_time;
  EXPECT_THAT(WarningsOf(machine, 1, nullptr, &step_time), IsEmpty());
  EXPECT_THAT(step_time, HasSubstr("no prediction of a step's seconds"));
}

}  // namespace
}  // namespace shale
