// Tests the verdicts on jobs of others, what would make them fit, and that any thread can end the search.
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "engine/api/job.h"
#include "engine/api/plan.h"
#include "gtest/gtest.h"
#include "tests/engine/plan/planner/planner_jobs.h"

namespace shale {
namespace {

using Verdict = Admission::Verdict;

AdmissionMachine MachineWith(int64_t budget_bytes, DeviceType device = DeviceType::kCpu) {
  return {.planning = [](const Job&, int64_t) { return MachineOf(); }, .device = device, .budget_bytes = budget_bytes};
}

// Returns the job without the budget that tests of the planner give it.
Job Unlimited(Job job) {
  job.memory.budget_bytes = 0;
  return job;
}

Admission AdmitNow(const Job& job, const AdmissionMachine& machine) {
  absl::StatusOr<Admission> admission = Admit(job, machine);
  EXPECT_TRUE(admission.ok()) << admission.status();
  return admission.ok() ? *std::move(admission) : Admission();
}

Admission AdmitText(const std::string& text, const AdmissionMachine& machine = MachineWith(kNoBudget)) {
  absl::StatusOr<Admission> admission = Admit(text, machine);
  EXPECT_TRUE(admission.ok()) << admission.status();
  return admission.ok() ? *std::move(admission) : Admission();
}

std::vector<std::string> SettingsOf(const Variant& way) {
  std::vector<std::string> settings;
  for (const Override& change : way.overrides) settings.push_back(absl::StrCat(change.path, "=", change.value));
  return settings;
}

constexpr char kJob[] = R"(
model { decoder { width: 16 layers: 3 heads: 2 vocabulary: 50 } }
data { path: "x" }
batch { global_batch: 8 micro_batch: 2 sequence_length: 8 }
lr_schedule { steps: 1 }
)";

// The resolved job gives no moments, which the text does. Its budget is larger than the machine's.
TEST(Admit, EachWayOutOfATextGoesWithAllThatTheTextGives) {
  const std::string text =
      absl::StrCat(kJob,
                   "optimizer { moments: FP32 } activation_checkpointing { segment_blocks: 1 } "
                   "memory { budget_bytes: 1099511627776 } sharding { ranks: 4 accumulation: SHARDED }");
  const Admission all = AdmitText(text);
  ASSERT_EQ(all.verdict, Verdict::kFits) << all.text;
  const auto needs = static_cast<double>(all.resolved->plan.chosen().cost.arena_bytes);
  int settings_of_moments = 0;
  for (const double fraction : {0.999, 0.7, 0.4}) {
    for (const int64_t most_ranks : {4, 2}) {
      AdmissionMachine machine = MachineWith(static_cast<int64_t>(fraction * needs));
      machine.most_ranks = most_ranks;
      const Admission refused = AdmitText(text, machine);
      ASSERT_EQ(refused.verdict, Verdict::kDoesNotFit);
      ASSERT_TRUE(refused.refusal);
      for (const Variant& way : refused.refusal->ways_out) {
        const absl::StatusOr<Admission> admitted = Admit(text, machine, {}, SettingsOf(way));
        ASSERT_TRUE(admitted.ok()) << admitted.status();
        ASSERT_EQ(admitted->verdict, Verdict::kFits) << SettingsOf(way)[0] << ": " << admitted->text;
        EXPECT_EQ(admitted->resolved->plan.chosen().cost.arena_bytes, way.cost.arena_bytes) << SettingsOf(way)[0];
        settings_of_moments += way.overrides.back() == Override{"optimizer.moments", ""} ? 1 : 0;
      }
    }
  }
  EXPECT_GT(settings_of_moments, 0);
}

TEST(Admit, SaysWhichGroupTakesARateThatIsNotThatOfItsRule) {
  const Admission admitted =
      AdmitText(absl::StrCat(kJob, "optimizer { rule: SGD groups { parameters: \"head*\" rule: LION } }"));
  ASSERT_EQ(admitted.verdict, Verdict::kFits) << admitted.text;
  ASSERT_EQ(admitted.remarks.size(), 1);
  EXPECT_TRUE(absl::StartsWith(admitted.remarks[0], "optimizer.groups[0] (head*) has rule LION"))
      << admitted.remarks[0];
}

TEST(Admit, TakesAJobExactlyIfItsPlanFits) {
  Job job = Unlimited(SmallDecoderJob(false));
  job.sharding.accumulation = Accumulation::kSharded;
  const absl::StatusOr<JobPlan> plan = PlanJob(job, MachineOf());
  ASSERT_TRUE(plan.ok()) << plan.status();
  const Admission exactly = AdmitNow(job, MachineWith(plan->arena_bytes));
  ASSERT_EQ(exactly.verdict, Verdict::kFits) << exactly.text;
  EXPECT_EQ(exactly.resolved->plan.arena_bytes, plan->arena_bytes);
  EXPECT_TRUE(exactly.errors.empty() && exactly.remarks.empty() && !exactly.refusal);
  const Admission less = AdmitNow(job, MachineWith(plan->arena_bytes - 1));
  ASSERT_EQ(less.verdict, Verdict::kDoesNotFit) << less.text;
  ASSERT_TRUE(less.refusal);
  EXPECT_EQ(less.refusal->budget.bytes, plan->arena_bytes - 1);
  EXPECT_EQ(less.text, RefusalText(*less.refusal));
}

// A scheduler gives a way out to --set as it stands, without looking at it.
TEST(Admit, EachWayOutMakesTheJobFitWithTheBytesThatItNames) {
  std::vector<Job> jobs;
  for (Strategy strategy : {Strategy::kDdp, Strategy::kZero2, Strategy::kFullShard}) {
    for (DeviceType device : {DeviceType::kCpu, DeviceType::kCuda}) {
      Job job = Unlimited(SmallDecoderJob(jobs.size() % 2 == 0));
      job.sharding.strategy = strategy;
      job.sharding.accumulation = Accumulation::kLayered;
      job.runtime.device = device;
      if (jobs.size() % 3 == 1) job.precision.compute = ComputePrecision::kBFloat16;
      if (jobs.size() % 3 == 2) job.checkpoint.every_steps = 1;
      if (device == DeviceType::kCuda) job.memory.offload_state = {.moments = true};
      jobs.push_back(std::move(job));
    }
  }
  int single = 0, together = 0, hopeless = 0;
  for (const Job& job : jobs) {
    const absl::StatusOr<JobPlan> plan = PlanJob(job, MachineOf());
    ASSERT_TRUE(plan.ok()) << plan.status();
    for (double fraction : {0.9, 0.5, 0.3, 0.1}) {
      const AdmissionMachine machine =
          MachineWith(static_cast<int64_t>(fraction * static_cast<double>(plan->arena_bytes)), job.runtime.device);
      const Admission refused = AdmitNow(job, machine);
      ASSERT_EQ(refused.verdict, Verdict::kDoesNotFit);
      ASSERT_TRUE(refused.refusal);
      EXPECT_FALSE(refused.refusal->search_ended_early);
      (refused.refusal->ways_out.empty() ? hopeless : refused.refusal->only_together ? together : single)++;
      for (const Variant& way : refused.refusal->ways_out) {
        const std::vector<std::string> settings = SettingsOf(way);
        const absl::StatusOr<Admission> admitted = Admit(ResolvedJobText(job), machine, {}, settings);
        ASSERT_TRUE(admitted.ok()) << admitted.status();
        ASSERT_EQ(admitted->verdict, Verdict::kFits) << settings[0] << ": " << admitted->text;
        EXPECT_EQ(admitted->resolved->plan.arena_bytes, way.cost.arena_bytes) << settings[0];
        EXPECT_EQ(admitted->resolved->plan.train.memory.host_bytes, way.cost.host_bytes) << settings[0];
      }
      if (refused.refusal->nearest) {
        const absl::StatusOr<Admission> nearest =
            Admit(ResolvedJobText(job), machine, {}, SettingsOf(*refused.refusal->nearest));
        ASSERT_TRUE(nearest.ok()) << nearest.status();
        EXPECT_EQ(nearest->verdict, Verdict::kDoesNotFit);
      }
    }
  }
  EXPECT_GT(single, 0);
  EXPECT_GT(together, 0);
  EXPECT_GT(hopeless, 0);
}

TEST(Admit, TheMachinesBudgetCountsIfTheJobSetsALargerOne) {
  Job job = SmallDecoderJob(false);
  job.memory.budget_bytes = int64_t{1} << 40;
  const Admission refused = AdmitNow(job, MachineWith(10'000));
  ASSERT_EQ(refused.verdict, Verdict::kDoesNotFit);
  EXPECT_EQ(refused.refusal->budget.bytes, 10'000);
  ASSERT_EQ(refused.remarks.size(), 1);
  EXPECT_TRUE(absl::StartsWith(refused.remarks[0], "memory.budget_bytes is 1.0 TiB, and the machine has "))
      << refused.remarks[0];
  job.memory.budget_bytes = 9'000;
  const Admission smaller = AdmitNow(job, MachineWith(10'000));
  ASSERT_TRUE(smaller.refusal);
  EXPECT_EQ(smaller.refusal->budget.bytes, 9'000);
}

TEST(Admit, ErrorsHaveFieldsAndPlaces) {
  const Admission wrong = AdmitText(
      "model { decoder { width: 16 layers: 0 heads: 2 vocabulary: 50 } }\nbatch { global_batch: 8 sequence_length: 8 "
      "}\n"
      "  sharding { ranks: 0 }\nlr_schedule { steps: 1 }");
  EXPECT_EQ(wrong.verdict, Verdict::kInvalid);
  ASSERT_EQ(wrong.errors.size(), 2) << wrong.text;
  EXPECT_EQ(wrong.errors[0].path, "model.decoder.layers");
  EXPECT_EQ(wrong.errors[0].source, "job");
  EXPECT_EQ(wrong.errors[0].line, 1);
  EXPECT_EQ(wrong.errors[0].column, 29);
  const JobError& ranks = wrong.errors[1];
  EXPECT_EQ(ranks.path, "sharding.ranks");
  EXPECT_EQ(ranks.line, 3);
  EXPECT_EQ(ranks.column, 14);
  for (const JobError& error : wrong.errors) {
    EXPECT_TRUE(absl::StrContains(wrong.text, absl::StrCat(error.path, ": ", error.message))) << error.message;
  }
  const absl::StatusOr<Admission> set = Admit(kJob, MachineWith(kNoBudget), {}, {"sharding.strategy=FULL"});
  ASSERT_TRUE(set.ok() && set->errors.size() == 1) << set.status();
  EXPECT_EQ(set->errors[0].source, "--set");
  EXPECT_EQ(set->errors[0].path, "sharding.strategy");
  const Admission pattern = AdmitText(absl::StrCat(kJob, "optimizer { no_decay: \"nothing*\" }"));
  ASSERT_EQ(pattern.errors.size(), 1);
  EXPECT_EQ(pattern.errors[0].path, "optimizer.no_decay[0]");
  const absl::StatusOr<Admission> search = Admit(kJob, MachineWith(kNoBudget), {}, {"runtime.search=[\"lr\"]"});
  ASSERT_TRUE(search.ok() && search->errors.size() == 1) << search.status();
  EXPECT_EQ(search->errors[0].path, "runtime.search");
  EXPECT_TRUE(absl::StartsWith(search->errors[0].message, "found \"lr\"; allowed: sharding.strategy")) << search->text;
}

// The paths in a job of somebody else lead to this machine's files, or to a pipe that never ends.
TEST(Admit, OpensNoFile) {
  const Admission folder = AdmitText(
      "model { hf_folder: \"/dev/stdin\" } data { path: \"x\" } batch { global_batch: 8 sequence_length: 8 } "
      "lr_schedule { steps: 1 }");
  ASSERT_EQ(folder.verdict, Verdict::kInvalid);
  EXPECT_EQ(folder.errors[0].path, "model.hf_folder") << folder.text;
  EXPECT_TRUE(absl::StrContains(folder.text, "give model.decoder as well")) << folder.text;
  const std::string open =
      "model { decoder { width: 16 layers: 3 heads: 2 } } data { path: \"/dev/stdin\" } "
      "batch { global_batch: 8 sequence_length: 8 } lr_schedule { steps: 1 }";
  const Admission data = AdmitText(open);
  ASSERT_EQ(data.verdict, Verdict::kInvalid);
  EXPECT_EQ(data.errors[0].path, "model.decoder.vocabulary") << data.text;
  const absl::StatusOr<Admission> known = Admit(open, MachineWith(kNoBudget), {.data = {.vocabulary = 50}});
  ASSERT_TRUE(known.ok()) << known.status();
  EXPECT_EQ(known->verdict, Verdict::kFits) << known->text;
}

TEST(Admit, AMachineOfAnotherKindOrWithFewerPlaces) {
  const Admission cuda = AdmitText(kJob, MachineWith(kNoBudget, DeviceType::kCuda));
  EXPECT_EQ(cuda.verdict, Verdict::kDoesNotFit);
  EXPECT_EQ(cuda.text, "runtime.device is CPU, and the machine is for CUDA");
  EXPECT_FALSE(cuda.refusal);
  AdmissionMachine two = MachineWith(kNoBudget);
  two.most_ranks = 2;
  const std::string four = absl::StrCat(kJob, "sharding { ranks: 4 accumulation: SHARDED }");
  const Admission ranks = AdmitText(four, two);
  EXPECT_EQ(ranks.verdict, Verdict::kDoesNotFit);
  EXPECT_EQ(ranks.text, "sharding.ranks is 4, and the machine has room for 2 ranks; fits with sharding.ranks=2");
  ASSERT_TRUE(ranks.refusal && ranks.refusal->ways_out.size() == 1);
  EXPECT_EQ(ranks.refusal->ways_out[0].overrides, (std::vector<Override>{{"sharding.ranks", "2"}}));
  const std::string of_two = absl::StrCat(kJob, "sharding { ranks: 2 accumulation: SHARDED }");
  const Admission with_two = AdmitText(of_two, two);
  ASSERT_EQ(with_two.verdict, Verdict::kFits);
  EXPECT_EQ(with_two.resolved->plan.arena_bytes, ranks.refusal->ways_out[0].cost.arena_bytes);
  // It advises no more ranks than there is room for.
  two.budget_bytes = with_two.resolved->plan.arena_bytes - 1;
  const Admission refused = AdmitText(of_two, two);
  ASSERT_TRUE(refused.refusal);
  for (const Variant& way : refused.refusal->ways_out) EXPECT_NE(way.overrides[0].path, "sharding.ranks");
}

TEST(Admit, MachinesThatCannotPlanTheJobAreNoVerdict) {
  AdmissionMachine machine = MachineWith(kNoBudget);
  machine.planning = [](const Job&, int64_t) { return absl::FailedPreconditionError("no CUDA"); };
  EXPECT_EQ(Admit(kJob, machine).status(), absl::FailedPreconditionError("no CUDA"));
  machine.planning = [](const Job&, int64_t) { return absl::InvalidArgumentError("sharding.ranks: at most 64"); };
  const Admission wrong = AdmitText(kJob, machine);
  EXPECT_EQ(wrong.verdict, Verdict::kInvalid);
  EXPECT_EQ(wrong.errors[0].path, "sharding.ranks");
  EXPECT_EQ(wrong.errors[0].message, "at most 64");
}

TEST(Admit, AJobTooLargeForAnyMachineDoesNotFit) {
  const Admission large = AdmitText(
      "model { decoder { width: 16777216 layers: 1000 heads: 2 vocabulary: 50 } } data { path: \"x\" } "
      "batch { global_batch: 1099511627776 micro_batch: 1024 sequence_length: 65536 } lr_schedule { steps: 1 } "
      "sharding { accumulation: LAYERED }");
  EXPECT_NE(large.verdict, Verdict::kFits);
  EXPECT_FALSE(large.refusal);
}

// Ops that set a flag when planning has asked them for sizes a number of times, and count how often it still asks.
class CancellingOps : public ScratchOnlyOps {
 public:
  struct Shared {
    std::atomic<bool> cancelled = false;
    std::atomic<int> asked = 0;
    int cancel_at = 0;
  };
  explicit CancellingOps(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  int64_t ScratchBytes(const Op& op) const override {
    if (++shared_->asked == shared_->cancel_at) shared_->cancelled = true;
    return ScratchOnlyOps::ScratchBytes(op);
  }

 private:
  const std::shared_ptr<Shared> shared_;
};

TEST(Admit, EndsWithinAUnitWhenItIsCancelled) {
  Job job = Unlimited(SmallDecoderJob(false));
  std::get<DecoderConfig>(job.model).layers = 32;
  constexpr int kMostOpsOfAUnit = 100;
  int questions = 1 << 30;  // That planning and the search for ways out ask without being cancelled.
  for (int cancel_at = 1; cancel_at < questions; cancel_at = cancel_at * 3 + 7) {
    auto shared = std::make_shared<CancellingOps::Shared>();
    shared->cancel_at = cancel_at;
    AdmissionMachine machine = MachineWith(10'000);
    machine.planning = [&](const Job&, int64_t) -> absl::StatusOr<Machine> {
      return Machine{.create_ops = [shared](int64_t) { return std::make_unique<CancellingOps>(shared); }};
    };
    const absl::Status status = Admit(job, machine, {.cancelled = &shared->cancelled}).status();
    if (!shared->cancelled) {
      questions = shared->asked;
      break;
    }
    EXPECT_TRUE(absl::IsCancelled(status)) << cancel_at << ": " << status;
    EXPECT_LE(shared->asked, cancel_at + kMostOpsOfAUnit) << cancel_at;
  }
  EXPECT_LT(questions, 1 << 30);
  EXPECT_GT(questions, 10'000) << "most of the work was cancelled at some time";
}

TEST(Admit, WithoutTimeThereIsNoVerdict) {
  const absl::Status status = Admit(kJob, MachineWith(kNoBudget), {.time_limit = absl::ZeroDuration()}).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "its time limit of 0")) << status;
}

TEST(Admit, ARefusalStandsEvenIfTheSearchForWaysOutHasNoTime) {
  Job job = Unlimited(SmallDecoderJob(false));
  job.sharding.accumulation = Accumulation::kSharded;
  WorkLimits limits;
  int budgets = 0;
  const JobPlan plan = *PlanJob(job, MachineOf());
  job.memory.budget_bytes = plan.arena_bytes - 1;
  Refusal refusal;
  // The search asks for the budget of each job that it tries.
  Machine machine = MachineOf([&](int64_t) -> absl::StatusOr<Budget> {
    if (++budgets == 2) limits.deadline = WorkLimits::Clock::now();
    return Budget{};
  });
  const absl::Status status = PlanJob(job, machine, limits, &refusal).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_TRUE(refusal.search_ended_early);
  EXPECT_TRUE(refusal.ways_out.empty());
  EXPECT_TRUE(absl::StrContains(status.message(), "the search reached its time limit")) << status;
}

TEST(Admit, ThreadsPlanAtOnceAndAnotherOneCancels) {
  const Job fitting = Unlimited(SmallDecoderJob(false));
  const int64_t bytes = PlanJob(fitting, MachineOf())->arena_bytes;
  Job endless = Unlimited(SmallDecoderJob(true));
  endless.memory.budget_bytes = 1;
  endless.sharding.ranks = 720'720;
  endless.sharding.shard_ranks = 1;
  endless.batch.global_batch = 720'720;
  std::get<DecoderConfig>(endless.model).layers = 100;
  std::atomic<bool> cancelled = false, begun = false;
  absl::Status ended;
  std::thread cancelled_thread([&] {
    AdmissionMachine machine = MachineWith(kNoBudget);
    machine.planning = [&](const Job&, int64_t) -> absl::StatusOr<Machine> {
      begun = true;
      return MachineOf();
    };
    ended = Admit(endless, machine, {.time_limit = absl::InfiniteDuration(), .cancelled = &cancelled}).status();
  });
  std::vector<int64_t> planned(3);
  std::vector<std::thread> threads;
  for (int64_t& result : planned) {
    threads.emplace_back([&] {
      const Admission admission = AdmitNow(fitting, MachineWith(bytes));
      if (admission.resolved) result = admission.resolved->plan.arena_bytes;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(planned, std::vector<int64_t>(3, bytes));
  while (!begun) std::this_thread::yield();
  cancelled = true;
  cancelled_thread.join();
  EXPECT_TRUE(absl::IsCancelled(ended)) << ended;
}

}  // namespace
}  // namespace shale
