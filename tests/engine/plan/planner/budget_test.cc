// Tests budgets: of a job, of a machine, and of the memory of hosts.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/api/job.h"
#include "engine/strings/printing.h"
#include "gtest/gtest.h"
#include "tests/engine/plan/planner/plans.h"

namespace shale {
namespace {

// Returns a default budget that limits only host memory.
DefaultBudget HostOf(int64_t host_bytes) {
  return [=](int64_t) -> absl::StatusOr<Budget> {
    return Budget{.host_bytes = host_bytes, .host_origin = "a machine's memory"};
  };
}

TEST(HostBudget, RefusesWithNumbersAndSettingsThatReallyFit) {
  const Job job = OffloadingJob(Accumulation::kLayered);
  const int64_t offloads = Plan(job).train.memory.host_bytes;
  EXPECT_TRUE(PlanJob(job, MachineOf(HostOf(offloads))).ok());
  const absl::Status refused = PlanJob(job, MachineOf(HostOf(offloads - 1))).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  const std::string message(refused.message());
  const std::string missing = absl::StrCat(
      "offloads ", FormatBytes(offloads), " to host memory per rank, host budget ", FormatBytes(offloads - 1),
      " (a machine's memory; memory.host_budget_bytes sets another), 1 B too little; fits with ");
  EXPECT_TRUE(absl::StartsWith(message, missing)) << message;
  const std::vector<std::string> settings = SettingsIn(message);
  EXPECT_NE(std::find(settings.begin(), settings.end(), "memory.offload=[]"), settings.end()) << message;
  for (const std::string& setting : settings) {
    const absl::StatusOr<Job> changed = ParseJobText(ResolvedJobText(job), "job", {setting});
    ASSERT_TRUE(changed.ok()) << setting << ": " << changed.status();
    EXPECT_TRUE(PlanJob(*changed, MachineOf(HostOf(offloads - 1))).ok()) << setting;
  }
  // The same for state.
  Job state = job;
  state.memory.offload = {};
  state.memory.offload_state = {.moments = true};
  const int64_t moments = Plan(state).train.memory.host_bytes;
  const std::string refusal(PlanJob(state, MachineOf(HostOf(moments - 1))).status().message());
  EXPECT_TRUE(absl::StartsWith(
      refusal,
      absl::StrCat("offloads ", FormatBytes(moments), " to host memory per rank, host budget ",
                   FormatBytes(moments - 1),
                   " (a machine's memory; memory.host_budget_bytes sets another), 1 B too little; fits with ")))
      << refusal;
  EXPECT_TRUE(absl::StrContains(refusal, "memory.offload_state=[] (")) << refusal;

  Job named = job;
  named.memory.host_budget_bytes = offloads;
  EXPECT_TRUE(PlanJob(named, MachineOf(HostOf(1))).ok());
  named.memory.host_budget_bytes = offloads - 1;
  const std::string without_origin =
      absl::StrCat("offloads ", FormatBytes(offloads), " to host memory per rank, host budget ",
                   FormatBytes(offloads - 1), ", 1 B too little; fits with ");
  EXPECT_TRUE(absl::StartsWith(PlanJob(named, MachineOf(HostOf(offloads))).status().message(), without_origin));
}

TEST(HostBudget, AJobThatExceedsBothIsToldOfBoth) {
  Job job = OffloadingJob(Accumulation::kLayered);
  const JobPlan plan = Plan(job);
  job.memory.budget_bytes = plan.arena_bytes - 2;
  EXPECT_TRUE(absl::StartsWith(
      PlanJob(job, MachineOf(HostOf(plan.train.memory.host_bytes - 3))).status().message(),
      absl::StrCat("needs ", FormatBytes(plan.arena_bytes), " per rank, budget ", FormatBytes(plan.arena_bytes - 2),
                   ", 2 B too little, and offloads ", FormatBytes(plan.train.memory.host_bytes),
                   " to host memory per rank, host budget ", FormatBytes(plan.train.memory.host_bytes - 3),
                   " (a machine's memory; memory.host_budget_bytes sets another), 3 B too little; ")));
}

// The settings that save memory together leave out offload if the host has no memory for it.
TEST(HostBudget, EverythingTogetherStaysWithinIt) {
  for (const std::vector<std::string>& offload : {std::vector<std::string>{}, {"blocks.*"}}) {
    Job job = OffloadingJob(Accumulation::kLayered);
    job.memory.offload = {};
    job.memory.budget_bytes = 1;
    job.memory.host_budget_bytes = 1;
    job.sharding.strategy = Strategy::kDdp;
    job.sharding.ranks = 2;
    const std::string hopeless = RefusalMessage(job);
    EXPECT_TRUE(absl::StrContains(hopeless, "it is still too large with activation_checkpointing.preset=BLOCK, "))
        << hopeless;
    // All settings except offload.
    std::vector<std::string> settings = SettingsIn(hopeless);
    for (const char* host : {"memory.offload=*", "memory.offload_state=MOMENTS", "optimizer.device=HOST"}) {
      settings.erase(std::remove(settings.begin(), settings.end(), host), settings.end());
    }
    settings.push_back("memory.budget_bytes=");
    const absl::StatusOr<Job> changed = ParseJobText(ResolvedJobText(job), "job", settings);
    ASSERT_TRUE(changed.ok()) << changed.status();
    job.memory.budget_bytes = Plan(*changed).arena_bytes;
    job.memory.offload = offload;
    const std::string message = RefusalMessage(job);
    EXPECT_TRUE(absl::StrContains(message, "these together do: ")) << message;
    EXPECT_FALSE(absl::StrContains(message, "memory.offload=*")) << message;
    EXPECT_FALSE(absl::StrContains(message, "memory.offload_state")) << message;
    EXPECT_FALSE(absl::StrContains(message, "optimizer.device")) << message;
    EXPECT_EQ(absl::StrContains(message, "memory.offload=[]"), !offload.empty()) << message;
  }
}

TEST(HostBudget, AutoTakesNoScheduleThatTheHostHasNoRoomFor) {
  const JobPlan any = Plan(OffloadingJob(Accumulation::kAuto));
  EXPECT_EQ(any.options.accumulation, Accumulation::kLayered);  // It sends the fewest bytes.
  const absl::StatusOr<JobPlan> little =
      PlanJob(OffloadingJob(Accumulation::kAuto), MachineOf(HostOf(any.train.memory.host_bytes - 1)));
  ASSERT_TRUE(little.ok()) << little.status();
  EXPECT_NE(little->options.accumulation, Accumulation::kLayered);
  EXPECT_TRUE(absl::StrContains(little->accumulation_reason,
                                absl::StrCat("LAYERED: ", FormatBytes(any.arena_bytes), " + ",
                                             FormatBytes(any.train.memory.host_bytes), " of host memory, sends ")))
      << little->accumulation_reason;
  EXPECT_TRUE(absl::StrContains(little->accumulation_reason, ", does not fit")) << little->accumulation_reason;
}

constexpr int64_t kMachineBytes = int64_t{16} << 30;

// Returns a default budget that divides `bytes` by the number of ranks, and refuses more than `most` ranks.
DefaultBudget ShareOf(int64_t bytes, int64_t most = int64_t{1} << 20) {
  return [=](int64_t ranks) -> absl::StatusOr<Budget> {
    if (ranks > most) return absl::FailedPreconditionError("so many ranks cannot run here");
    return Budget{.bytes = bytes / ranks, .origin = absl::StrCat("a machine's memory, divided by ", ranks)};
  };
}

TEST(Budget, IsTheJobsOrTheDefaultOrNone) {
  Job job = SmallDecoderJob(false);
  const auto budget = [&](const DefaultBudget& default_budget) {
    return PlanJob(job, MachineOf(default_budget))->budget;
  };
  EXPECT_EQ(budget(ShareOf(kMachineBytes)).bytes, int64_t{1} << 40);
  EXPECT_EQ(budget(ShareOf(kMachineBytes)).origin, "");
  job.memory.budget_bytes = 0;
  job.sharding.ranks = 3;
  EXPECT_EQ(budget(ShareOf(kMachineBytes)).bytes, kMachineBytes / 3);
  EXPECT_EQ(budget(ShareOf(kMachineBytes)).origin, "a machine's memory, divided by 3");
  EXPECT_EQ(budget({}).bytes, kNoBudget);
  EXPECT_EQ(PlanJob(job, MachineOf(ShareOf(kMachineBytes, 2))).status().message(), "so many ranks cannot run here");
}

TEST(Budget, OfAMachineIsEasedByFewerRanks) {
  Job job = SmallDecoderJob(false);
  job.memory.budget_bytes = 0;
  // For each of a million ranks, padding alone takes megabytes, which is more than the machine has for it.
  job.sharding.ranks = 1 << 20;
  const absl::Status refused = PlanJob(job, MachineOf(ShareOf(kMachineBytes))).status();
  ASSERT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  const std::string message(refused.message());
  EXPECT_TRUE(absl::StrContains(message, "(a machine's memory, divided by 1048576; memory.budget_bytes sets another)"))
      << message;
  const std::vector<std::string> settings = SettingsIn(message);
  ASSERT_FALSE(settings.empty()) << message;
  ASSERT_TRUE(absl::StartsWith(settings.back(), "sharding.ranks=")) << message;
  job.sharding.ranks = std::stoll(settings.back().substr(settings.back().find('=') + 1));
  EXPECT_TRUE(PlanJob(job, MachineOf(ShareOf(kMachineBytes))).ok());
}

TEST(Budget, NoWayOutHasMoreRanksThanCanRunHere) {
  Job job = SmallDecoderJob(false);
  std::get<DecoderConfig>(job.model).layers = 24;  // Sharded memory outweighs the rest.
  std::get<DecoderConfig>(job.model).hidden = 1 << 12;
  job.batch.micro_batch = 1;
  job.sharding.ranks = 1;
  job.memory.budget_bytes = 0;
  job.sharding.accumulation = Accumulation::kSharded;
  const int64_t two_fit = [&] {
    Job two = job;
    two.sharding.ranks = 2;
    return Plan(two).arena_bytes;
  }();
  const auto refusal = [&](int64_t most) {
    const DefaultBudget same_for_each = [=](int64_t ranks) -> absl::StatusOr<Budget> {
      if (ranks > most) return absl::FailedPreconditionError("so many ranks cannot run here");
      return Budget{.bytes = two_fit, .origin = "a GPU's memory"};
    };
    return std::string(PlanJob(job, MachineOf(same_for_each)).status().message());
  };
  EXPECT_TRUE(absl::StrContains(refusal(2), "sharding.ranks=2 (")) << refusal(2);
  EXPECT_FALSE(absl::StrContains(refusal(1), "sharding.ranks=")) << refusal(1);
}

// Scratch may depend on the number of ranks, for example through the number of threads of a rank.
TEST(Budget, AWayOutHasTheOpsOfItsRanks) {
  Job one = SmallDecoderJob(false);
  one.memory.budget_bytes = 0;
  one.sharding.accumulation = Accumulation::kSharded;
  one.sharding.ranks = 1;
  Job two = one;
  two.sharding.ranks = 2;
  const auto machine = [](int64_t bytes) {
    return Machine{
        .create_ops = [](int64_t ranks) { return std::make_unique<ScratchOnlyOps>(ranks << 16); },
        .default_budget = [=](int64_t ranks) -> absl::StatusOr<Budget> { return Budget{.bytes = bytes / ranks}; }};
  };
  const absl::StatusOr<JobPlan> plan = PlanJob(one, machine(kNoBudget));
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto refusal = [&](int64_t bytes) { return std::string(PlanJob(two, machine(bytes)).status().message()); };
  EXPECT_TRUE(absl::StrContains(refusal(plan->arena_bytes),
                                absl::StrCat("sharding.ranks=1 (", FormatBytes(plan->arena_bytes), ")")))
      << refusal(plan->arena_bytes);
  EXPECT_FALSE(absl::StrContains(refusal(plan->arena_bytes - 1), "sharding.ranks=1 ("));
}

}  // namespace
}  // namespace shale
