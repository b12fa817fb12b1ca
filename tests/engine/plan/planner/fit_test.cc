#include "engine/plan/planner/fit.h"

#include <algorithm>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/api/job.h"
#include "engine/plan/planner/job_plan.h"
#include "engine/strings/printing.h"
#include "gtest/gtest.h"
#include "tests/engine/plan/planner/measured.h"
#include "tests/engine/plan/planner/planner_jobs.h"

namespace shale {
namespace {

constexpr char kMicroBatch[] = "batch.micro_batch", kSequenceLength[] = "batch.sequence_length",
               kRanks[] = "sharding.ranks";
constexpr absl::string_view kFields[] = {kMicroBatch, kSequenceLength, kRanks};

absl::StatusOr<Fit> Find(absl::string_view field, const Job& job, const Machine& machine = MachineOf()) {
  return FindFit(field, job, {}, machine);
}

// Returns the bytes of the job with this value and the accumulation that needs least. Returns nothing if the job cannot
// have the value.
std::optional<int64_t> Needs(absl::string_view field, Job job, int64_t value) {
  job.memory.budget_bytes = int64_t{1} << 40;
  const absl::StatusOr<Job> changed = WithOverrides(job, {absl::StrCat(field, "=", value)});
  if (!changed.ok()) return std::nullopt;
  const absl::StatusOr<JobPlan> plan = PlanJob(*changed, MachineOf());
  if (absl::IsInvalidArgument(plan.status())) return std::nullopt;
  EXPECT_TRUE(plan.ok()) << plan.status();
  int64_t least = plan->arena_bytes;
  for (const Variant& c : plan->candidates) {
    if (c.status.ok()) least = std::min(least, c.cost.arena_bytes);
  }
  return least;
}

// Expects FindFit to find what trying all values in [1, last] finds, for budgets that just hold, or just do not hold,
// each of these values. The job rules out values that are not multiples.
void ExpectAsTryingAll(absl::string_view field, Job job, int64_t last, int64_t multiple = 1) {
  const bool fewest = field == kRanks;
  std::vector<std::optional<int64_t>> needs;  // By value.
  for (int64_t value = 0; value <= last; ++value) {
    needs.push_back(value == 0 ? std::nullopt : Needs(field, job, value));
  }
  for (int64_t exact = multiple; exact <= last; exact += std::max(multiple, (1 + exact / 2) / multiple * multiple)) {
    for (int64_t budget : {needs[exact].value_or(0), needs[exact].value_or(0) - 1}) {
      if (budget < 2) continue;
      int64_t best = 0;
      for (int64_t value = 1; value <= last; ++value) {
        if (needs[value] && *needs[value] <= budget && !(fewest && best > 0)) best = value;
      }
      job.memory.budget_bytes = budget;
      const absl::StatusOr<Fit> fit = Find(field, job);
      if (best == 0) {
        EXPECT_TRUE(absl::IsResourceExhausted(fit.status())) << fit.status();
        continue;
      }
      ASSERT_TRUE(fit.ok()) << fit.status() << "; wanted " << best << ", which needs " << *needs[best];
      EXPECT_EQ(fit->value, best) << field << " within " << budget;
      EXPECT_TRUE(fit->best.fits);
      EXPECT_LE(fit->best.cost.arena_bytes, budget);
      EXPECT_EQ(fit->budget.bytes, budget);
      if (!fit->next) continue;
      EXPECT_EQ(fit->next->overrides,
                (std::vector<Override>{{std::string(field), absl::StrCat(fewest ? best - 1 : best + multiple)}}));
      EXPECT_FALSE(fit->next->fits);
      EXPECT_TRUE(!fit->next->status.ok() || fit->next->cost.arena_bytes > budget);
    }
  }
}

Job Named(Accumulation accumulation) {
  Job job = SmallDecoderJob(false);
  job.sharding.accumulation = accumulation;
  return job;
}

TEST(Fit, QuickFindsAMicroBatchWhoseNextDoesNotFit) {
  for (Accumulation accumulation : {Accumulation::kSharded, Accumulation::kLayered}) {
    Job job = Named(accumulation);
    for (int64_t exact = 2; exact <= 8; ++exact) {
      job.memory.budget_bytes = *Needs(kMicroBatch, job, exact);
      const absl::StatusOr<Fit> thorough = FindFit(kMicroBatch, job, {}, MachineOf());
      const absl::StatusOr<Fit> quick = FindFit(kMicroBatch, job, {}, MachineOf(), FitEffort::kQuick);
      ASSERT_TRUE(quick.ok()) << quick.status();
      EXPECT_TRUE(quick->best.fits);
      EXPECT_TRUE(!quick->next || !quick->next->fits);
      EXPECT_LE(quick->value, thorough->value);
      if (accumulation == Accumulation::kSharded) {
        EXPECT_EQ(quick->value, thorough->value);
      }
    }
  }
}

TEST(Fit, MicroBatchIsTheLargestThatFits) {
  for (Accumulation accumulation :
       {Accumulation::kSharded, Accumulation::kNoSync, Accumulation::kLayered, Accumulation::kAuto}) {
    // A rank has 8 sequences.
    ExpectAsTryingAll(kMicroBatch, Named(accumulation), 8);
  }
}

// With 11 sequences, micro-batches of 6 make two accumulation steps and keep 12 sequences. Micro-batches of 4 make
// three steps and also keep 12, but micro-batches of 5 make three and keep 15.
TEST(Fit, LargerMicroBatchesWithFewerStepsAreFound) {
  Job job = Named(Accumulation::kLayered);
  job.sharding.ranks = 1;
  job.batch.global_batch = 11;
  ExpectAsTryingAll(kMicroBatch, job, 11);
}

TEST(Fit, SequenceLengthIsTheLongestThatFits) {
  for (Accumulation accumulation : {Accumulation::kSharded, Accumulation::kLayered, Accumulation::kAuto}) {
    Job job = Named(accumulation);
    std::get<DecoderConfig>(job.model).max_positions = 20;
    ExpectAsTryingAll(kSequenceLength, job, 20);
  }
}

// Regression: a value that fp8 rules out counted as one that does not fit, which hid larger ones that fit.
TEST(Fit, StepsOverWhatFp8RulesOut) {
  Job job = Named(Accumulation::kSharded);
  DecoderConfig& model = std::get<DecoderConfig>(job.model);
  model.width = model.hidden = 16;
  model.head_width = 8;
  model.max_positions = 112;
  job.precision.compute = ComputePrecision::kBFloat16;
  job.precision.matmuls = MatMulPrecision::kFloat8;
  job.batch = {.global_batch = 40, .micro_batch = 1, .sequence_length = 48};
  ExpectAsTryingAll(kSequenceLength, job, 112, /*multiple=*/16);
  job.batch = {.global_batch = 60, .micro_batch = 4, .sequence_length = 4};
  for (Accumulation accumulation : {Accumulation::kSharded, Accumulation::kLayered, Accumulation::kAuto}) {
    job.sharding.accumulation = accumulation;
    ExpectAsTryingAll(kMicroBatch, job, 12, /*multiple=*/4);
  }
  // The base of adapters has no gradients, so that any number of tokens goes.
  model.adapter = AdapterConfig{.rank = 2, .targets = {"*"}};
  ExpectAsTryingAll(kMicroBatch, job, 12);
}

TEST(Fit, PositionsOfTheModelBoundTheSequenceLength) {
  const absl::StatusOr<Fit> fit = Find(kSequenceLength, Named(Accumulation::kSharded));
  ASSERT_TRUE(fit.ok()) << fit.status();
  EXPECT_EQ(fit->value, 16);
  ASSERT_TRUE(fit->next);
  EXPECT_EQ(fit->next->overrides.front().text(), "batch.sequence_length=17");
  EXPECT_TRUE(absl::StrContains(fit->next->status.message(), "max_positions is 16")) << fit->next->status;
}

TEST(Fit, RanksAreTheFewestThatFit) {
  for (Strategy strategy : {Strategy::kFullShard, Strategy::kZero1, Strategy::kDdp}) {
    Job job = Named(Accumulation::kAuto);
    job.sharding.strategy = strategy;
    job.batch.global_batch = 20;
    auto& model = std::get<DecoderConfig>(job.model);
    model.width = 96;  // Wide enough that shards are not mostly padding.
    model.hidden = 200;
    model.vocabulary = 300;
    ExpectAsTryingAll(kRanks, job, 20);
  }
}

TEST(Fit, NothingIsBeyondTheShareOfARankAndBelowOneRank) {
  const absl::StatusOr<Fit> micro_batch = Find(kMicroBatch, Named(Accumulation::kSharded));
  ASSERT_TRUE(micro_batch.ok()) << micro_batch.status();
  EXPECT_EQ(micro_batch->value, 8);
  EXPECT_FALSE(micro_batch->next);
  const absl::StatusOr<Fit> ranks = Find(kRanks, Named(Accumulation::kSharded));
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  EXPECT_EQ(ranks->value, 1);
  EXPECT_FALSE(ranks->next);
}

TEST(Fit, SaysWhatTheLeastNeedsIfNothingFits) {
  Job job = Named(Accumulation::kSharded);
  job.memory.budget_bytes = 10000;
  for (absl::string_view field : kFields) {
    const absl::Status status = Find(field, job).status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "per rank, budget 9.77 KiB")) << status;
  }
}

TEST(Fit, NeedsABudget) {
  Job job = Named(Accumulation::kSharded);
  job.memory.budget_bytes = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(Find(kMicroBatch, job).status()));
  const Machine machine = MachineOf([](int64_t) { return Budget{.bytes = int64_t{1} << 40, .origin = "all"}; });
  EXPECT_TRUE(Find(kMicroBatch, job, machine).ok());
  // Ranks share the memory of a machine, so the default budget depends on their number.
  EXPECT_TRUE(absl::IsInvalidArgument(Find(kRanks, job, machine).status()));
  job.memory.budget_bytes = int64_t{1} << 40;
  EXPECT_TRUE(Find(kRanks, job, machine).ok());
  job.memory.offload = {"*"};
  EXPECT_EQ(Find(kRanks, job, machine).status().message(),
            "sharding.ranks of a job that offloads can only be found for a given host budget; set "
            "memory.host_budget_bytes to what one rank has");
}

TEST(Fit, RanksAreThoseOfOneGroup) {
  Job job = Named(Accumulation::kSharded);
  job.memory.budget_bytes = int64_t{1} << 40;
  job.sharding.shard_ranks = 1;
  EXPECT_EQ(Find(kRanks, job).status().message(),
            "sharding.ranks is found for one group of all ranks; leave sharding.shard_ranks out");
}

// Seconds of which little was measured are called an estimate.
TEST(Fit, SaysWhetherItsSecondsAreEstimated) {
  const Job job = Named(Accumulation::kSharded);
  std::vector<JobPlan> plans;
  for (int64_t micro_batch = 1; micro_batch <= 8; ++micro_batch) {
    Job one = job;
    one.batch.micro_batch = micro_batch;
    plans.push_back(Plan(one));
  }
  proto::MachineProfile profile = MeasuredFor(plans);
  for (const bool measured : {true, false}) {
    if (!measured) profile.clear_works();
    const absl::StatusOr<Fit> fit = Find(kMicroBatch, job, MachineWith(profile));
    ASSERT_TRUE(fit.ok()) << fit.status();
    EXPECT_TRUE(absl::StrContains(FitText(*fit), absl::StrCat(FormatSeconds(fit->best.cost.seconds), " a step")));
    EXPECT_EQ(absl::StrContains(FitText(*fit), " a step, estimated"), !measured) << FitText(*fit);
    // The seconds once stood between the bytes and "per rank".
    EXPECT_TRUE(absl::StrContains(
        FitText(*fit), absl::StrCat(" bytes) per rank, budget ", FormatBytes(fit->budget.bytes), ", and takes ")))
        << FitText(*fit);
  }
}

TEST(Fit, OtherFieldsAreRefusedWithTheThree) {
  for (absl::string_view field : kFields) {
    EXPECT_TRUE(CheckFitField(field).ok());
  }
  EXPECT_EQ(CheckFitField("model.decoder.layers").message(),
            "found \"model.decoder.layers\"; allowed: batch.micro_batch, batch.sequence_length, sharding.ranks");
}

}  // namespace
}  // namespace shale
