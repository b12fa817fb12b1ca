#include "engine/plan/search/search.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/api/job.h"
#include "engine/compile/memory/plan.h"
#include "engine/compile/program/issues.h"
#include "engine/compile/program/work_limits.h"
#include "engine/plan/planner/options.h"
#include "engine/plan/planner/step_facts.h"
#include "engine/plan/planner/variant.h"
#include "engine/plan/search/decided_fields.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/machine.pb.h"
#include "tests/engine/plan/planner/planner_jobs.h"

namespace shale {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Seconds that grow with everything that costs time: arithmetic, what is sent, and each issue of an instruction.
absl::StatusOr<double> Seconds(const Job&, const Draft& draft) {
  return draft.cost.flops.total() * 1e-6 + static_cast<double>(draft.cost.sent_bytes) * 1e-6 +
         static_cast<double>(CountIssues(draft.train.step.program)) * 1e-3;
}

class SearchTest : public ::testing::Test {
 protected:
  SearchTest() {
    job_ = SmallDecoderJob(/*tied=*/false);
    std::get<DecoderConfig>(job_.model).layers = 3;
    job_.sharding.accumulation = Accumulation::kSharded;
    job_.batch = {.global_batch = 20, .micro_batch = 2, .sequence_length = 8};
  }

  absl::StatusOr<SearchResult> Find(int64_t budget, std::vector<std::string> fields = {}) {
    job_.memory.budget_bytes = budget;
    return FindFastest({.job = job_, .machine = machine_, .fields = std::move(fields), .seconds = Seconds});
  }
  SearchResult MustFind(int64_t budget, std::vector<std::string> fields = {}) {
    absl::StatusOr<SearchResult> found = Find(budget, std::move(fields));
    EXPECT_TRUE(found.ok()) << found.status();
    return found.ok() ? *std::move(found) : SearchResult();
  }

  // Returns machine_ with a speed.
  Machine KnownMachine() const {
    proto::MachineProfile profile;
    profile.set_copy_bytes_per_second(1e9);
    profile.set_peak_flops_f32(1e12);
    Machine machine = machine_;
    machine.profile = std::make_shared<const proto::MachineProfile>(profile);
    return machine;
  }

  Job job_;
  const Machine machine_ = MachineOf();
  const WorkLimits limits_;
};

// Returns the text with single spaces.
std::string Unwrapped(const std::string& text) {
  return absl::StrJoin(absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty()), " ");
}

// Returns budgets between the least and the most that any way of the job needs.
std::vector<int64_t> BudgetsWithin(const SearchResult& result, int count) {
  const int64_t most = result.front.front().cost.arena_bytes;
  const int64_t least = result.front.back().cost.arena_bytes;
  std::vector<int64_t> budgets;
  for (int i = 0; i < count; ++i) budgets.push_back(least + (most - least) * i / count);
  return budgets;
}

TEST_F(SearchTest, FindsWhatTryingAllWaysFinds) {
  const std::vector<std::string> fields = {"batch.micro_batch", "activation_checkpointing.preset"};
  for (const int64_t budget : BudgetsWithin(MustFind(int64_t{1} << 40, fields), 2)) {
    const SearchResult found = MustFind(budget, fields);
    Drafter drafter(job_, machine_, limits_);
    double least = std::numeric_limits<double>::max();
    for (const char* micro_batch : {"1", "2", "4"}) {
      for (const char* preset : {"NONE", "CHEAP", "ATTENTION", "FFN", "SUBLAYERS", "BLOCK"}) {
        const absl::StatusOr<Draft> draft =
            drafter.Compile({{"batch.micro_batch", micro_batch}, {"activation_checkpointing.preset", preset}});
        if (draft.ok() && draft->fits) least = std::min(least, *Seconds(job_, *draft));
      }
    }
    EXPECT_LE(found.best.cost.seconds, 1.001 * least) << budget;
    EXPECT_LE(found.best.cost.arena_bytes, budget);
  }
}

TEST_F(SearchTest, MoreMemoryIsNeverSlower) {
  const SearchResult all = MustFind(int64_t{1} << 40);
  // The front begins with the fastest way, and each other one is slower and smaller.
  ASSERT_GT(all.front.size(), 2u);
  EXPECT_LE(all.front.front().cost.seconds, all.best.cost.seconds);
  EXPECT_GE(all.front.front().cost.seconds, 0.999 * all.best.cost.seconds);
  for (size_t i = 1; i < all.front.size(); ++i) {
    EXPECT_GE(all.front[i].cost.seconds, all.front[i - 1].cost.seconds);
    EXPECT_LT(all.front[i].cost.arena_bytes, all.front[i - 1].cost.arena_bytes);
  }
  const SearchResult least = MustFind(BudgetsWithin(all, 2).front());
  EXPECT_GE(least.best.cost.seconds, 0.999 * all.best.cost.seconds);
  // The overrides of a result give its cost and its seconds when they are applied to the job.
  Drafter drafter(job_, machine_, limits_);
  const absl::StatusOr<Draft> again = drafter.Compile(least.best.overrides);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->cost.arena_bytes, least.best.cost.arena_bytes);
  EXPECT_EQ(*Seconds(job_, *again), least.best.cost.seconds);
}

TEST_F(SearchTest, RecomputesSingleTensorsWhereNoPresetFitsAsWell) {
  const std::vector<std::string> fields = {"activation_checkpointing.preset"};
  bool by_tensor = false;
  for (const int64_t budget : BudgetsWithin(MustFind(int64_t{1} << 40, fields), 4)) {
    for (const Override& setting : MustFind(budget, fields).best.overrides) {
      by_tensor = by_tensor || (setting.path == "activation_checkpointing.recompute" && setting.value != "[]");
    }
  }
  EXPECT_TRUE(by_tensor);
}

TEST_F(SearchTest, ChangesOnlyTheFieldsThatItMay) {
  const SearchResult found = MustFind(int64_t{1} << 40, {"sharding.accumulation"});
  ASSERT_EQ(found.choices.size(), 1u);
  EXPECT_EQ(found.choices[0].path, "sharding.accumulation");
  for (const Override& setting : found.best.overrides) EXPECT_EQ(setting.path, "sharding.accumulation");
  ASSERT_TRUE(found.choices[0].runner_up.has_value());
  EXPECT_GE(found.choices[0].runner_up->cost.seconds, found.best.cost.seconds);
}

TEST_F(SearchTest, SaysWhatIsMissingWhereNothingFits) {
  const absl::StatusOr<SearchResult> found = Find(1000, {"sharding.accumulation"});
  EXPECT_EQ(found.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(found.status().message()),
              AllOf(HasSubstr("no setting fits; nearest is "), HasSubstr("budget 1,000 B"), HasSubstr("too little")));
  // It once listed every field of checkpointing that the job lacks, each set to nothing.
  EXPECT_THAT(std::string(Find(1000).status().message()),
              AllOf(HasSubstr("batch.micro_batch=1"), Not(HasSubstr("=,")), Not(HasSubstr("recompute=[]"))));
}

// Regression: where the job left the accumulation open, ways had the one with the fewest bytes in a sketch, which was
// not always that of their plan.
TEST_F(SearchTest, WhatItSaysIsThatOfThePlanWithAnyAccumulation) {
  job_.sharding.accumulation = Accumulation::kAuto;
  job_.sharding.strategy = Strategy::kDdp;
  job_.sharding.ranks = 2;
  job_.batch = {.global_batch = 4, .micro_batch = 2, .sequence_length = 32};
  job_.memory.budget_bytes = int64_t{1} << 40;
  std::get<DecoderConfig>(job_.model).adapter = AdapterConfig{.rank = 5, .targets = {"*"}};
  for (int64_t layers = 1; layers <= 5; ++layers) {
    std::get<DecoderConfig>(job_.model).layers = layers;
    for (const Storage frozen : {Storage::kAsUsed, Storage::kNf4}) {
      job_.optimizer.frozen_weights = frozen;
      const SearchResult found = MustFind(int64_t{1} << 40, {"sharding.strategy"});
      for (const Variant& way : found.front) {
        absl::StatusOr<Draft> draft = Drafter(job_, machine_, limits_).Compile(way.overrides);
        ASSERT_TRUE(draft.ok()) << draft.status();
        EXPECT_EQ(draft->cost.arena_bytes, way.cost.arena_bytes) << layers;
        EXPECT_EQ(draft->options.accumulation, way.accumulation) << layers;
      }
    }
  }
}

// Regression: every strategy that does not gather was refused because of the job's own prefetch, and nobody was told.
TEST_F(SearchTest, TriesStrategiesWithoutTheFieldsThatTheyLack) {
  job_.sharding.prefetch = 2;
  const SearchResult found = MustFind(int64_t{1} << 40, {"sharding.strategy"});
  ASSERT_EQ(found.choices.size(), 1u);
  EXPECT_THAT(found.choices[0].ruled_out, IsEmpty());
  // All ranks hold everything, so a step sends least.
  const std::vector<Override> ddp = {{"sharding.strategy", "DDP"},
                                     {"sharding.prefetch", ""},
                                     {"sharding.reshard_after_forward", ""},
                                     {"sharding.accumulation", "AUTO"}};
  EXPECT_EQ(found.choices[0].taken, ddp);
  EXPECT_EQ(found.best.overrides, ddp);
  EXPECT_THAT(SearchText(found), HasSubstr("A field that is set to nothing is left out"));
  ASSERT_TRUE(found.choices[0].runner_up.has_value());
  // What the job does rule out is named.
  job_.precision.gradient_shards = GradientShards::kBFloat16;
  const SearchResult narrow = MustFind(int64_t{1} << 40, {"sharding.strategy"});
  EXPECT_EQ(narrow.choices[0].ruled_out.size(), 2u);
  EXPECT_THAT(Unwrapped(SearchText(narrow)),
              HasSubstr("ruled out by the job: DDP with sharding.accumulation=AUTO, ZERO1"));
}

TEST_F(SearchTest, SaysWhatWasTriedAndWhatWasNot) {
  const std::vector<std::string> fields = {"batch.micro_batch"};
  const SearchResult all = MustFind(int64_t{1} << 40, fields);
  EXPECT_THAT(all.choices[0].too_large, IsEmpty());
  EXPECT_THAT(all.choices[0].not_tried, IsEmpty());
  const SearchResult small = MustFind(all.front.back().cost.arena_bytes, fields);
  EXPECT_FALSE(small.choices[0].runner_up.has_value());
  EXPECT_THAT(Unwrapped(SearchText(small)), HasSubstr("batch.micro_batch=1; too large: 4, 2"));
}

// All that was tried, planned in full, has the same front.
TEST_F(SearchTest, TheFrontIsThatOfAllThatWasTried) {
  proto::MachineProfile machine;
  machine.set_device("CPU");
  std::vector<Job> tried;
  const auto seconds = [&](const Job& job, const Draft& draft) -> absl::StatusOr<double> {
    // What changes the training is no way of the front.
    OptimizerConfig own = job_.optimizer;
    own.update = job.optimizer.update;
    const bool trains_the_same = job.optimizer == own && job.precision == job_.precision;
    if (trains_the_same && std::find(tried.begin(), tried.end(), job) == tried.end()) tried.push_back(job);
    const StepFacts facts = StepFactsOf(job, draft.graphs->train, draft.options.mesh, machine);
    return Predict(draft.train.step.program, facts, machine).step_seconds;
  };
  for (const std::vector<std::string>& fields :
       std::vector<std::vector<std::string>>{{}, {"batch.micro_batch"}, {"activation_checkpointing.preset"}}) {
    tried.clear();
    const absl::StatusOr<SearchResult> found =
        FindFastest({.job = job_, .machine = machine_, .fields = fields, .seconds = seconds});
    ASSERT_TRUE(found.ok()) << found.status();
    std::vector<std::pair<double, int64_t>> all, front;
    for (const Job& job : std::vector<Job>(tried)) {
      absl::StatusOr<Draft> draft = Drafter(job, machine_, limits_).Compile();
      ASSERT_TRUE(draft.ok()) << draft.status();
      DeriveWaits(draft->train.step.program, draft->train.memory);
      all.emplace_back(*seconds(job, *draft), draft->cost.arena_bytes);
    }
    std::sort(all.begin(), all.end());
    for (const auto& way : all) {
      if (front.empty() || way.second < front.back().second) front.push_back(way);
    }
    EXPECT_EQ(found->front.size(), std::min<size_t>(front.size(), 12));
    for (const Variant& way : found->front) {
      EXPECT_THAT(front, Contains(std::make_pair(way.cost.seconds, way.cost.arena_bytes)));
    }
  }
}

// The search leaves out ways by their bounds alone.
TEST_F(SearchTest, NoStepIsFasterThanItsBound) {
  const Machine machine = KnownMachine();
  Drafter drafter(job_, machine, limits_);
  for (const char* accumulation : {"SHARDED", "NO_SYNC", "LAYERED"}) {
    for (const char* preset : {"NONE", "SUBLAYERS", "BLOCK"}) {
      const absl::StatusOr<Job> job =
          drafter.With({{"sharding.accumulation", accumulation}, {"activation_checkpointing.preset", preset}});
      ASSERT_TRUE(job.ok()) << job.status();
      absl::StatusOr<Draft> draft = drafter.Sketch(*job);
      ASSERT_TRUE(draft.ok()) << draft.status();
      const double least = drafter.LeastSecondsOf(*job, *draft), sketched = drafter.TimeOf(*job, *draft).seconds;
      draft = drafter.Place(*job, *std::move(draft));
      ASSERT_TRUE(draft.ok()) << draft.status();
      const double planned = drafter.TimeOf(*job, *draft).seconds;
      EXPECT_LE(least, std::min(sketched, planned)) << accumulation << " " << preset;
      EXPECT_GT(least, 0.1 * planned) << accumulation << " " << preset;
    }
  }
}

// Other threads make ways ahead, and some that nobody asks for.
TEST_F(SearchTest, OtherThreadsChangeNoResult) {
  const Machine machine = KnownMachine();
  for (const Accumulation accumulation : {Accumulation::kAuto, Accumulation::kLayered}) {
    job_.sharding.accumulation = accumulation;
    job_.memory.budget_bytes = BudgetsWithin(MustFind(int64_t{1} << 40, {"batch.micro_batch"}), 2).back();
    const auto find = [&](int threads) {
      const absl::StatusOr<SearchResult> found =
          FindFastest({.job = job_, .machine = machine, .most_threads = threads});
      return found.ok() ? absl::StrCat(SearchText(*found), found->plans) : found.status().ToString();
    };
    EXPECT_EQ(find(1), find(5));
  }
}

// What changes the training is listed with its cost, and never taken.
TEST_F(SearchTest, ListsWhatChangesTheTrainingAndTakesNoneOfIt) {
  job_.precision.compute = ComputePrecision::kBFloat16;
  job_.precision.master = MasterWeights::kFloat32;
  job_.sharding.accumulation = Accumulation::kAuto;
  const SearchResult found = MustFind(int64_t{1} << 40, {"batch.micro_batch"});
  std::vector<std::string> paths;
  for (const Variant& way : found.changing) {
    paths.push_back(way.overrides.front().path);
    EXPECT_NE(way.caveat, "");
    EXPECT_GT(way.cost.seconds, 0);
    std::vector<Override> all = found.best.overrides;
    all.insert(all.end(), way.overrides.begin(), way.overrides.end());
    const absl::StatusOr<Draft> draft = Drafter(job_, machine_, limits_).Compile(all);
    ASSERT_TRUE(draft.ok()) << draft.status();
    EXPECT_EQ(draft->cost.arena_bytes, way.cost.arena_bytes) << paths.back();
  }
  EXPECT_THAT(paths, ::testing::UnorderedElementsAre("optimizer.rule", "precision.master", "precision.gradient_shards",
                                                     "precision.reduce", "optimizer.update"));
  for (const Override& setting : found.best.overrides) EXPECT_EQ(setting.path, "batch.micro_batch");
  EXPECT_THAT(Unwrapped(SearchText(found)),
              AllOf(HasSubstr("Changes the training, never taken by itself: "),
                    HasSubstr("optimizer.rule=ADAMW_8BIT: moments in 8 bits, which may cost quality")));
}

// The comments change nothing, and each field that was searched has one.
TEST_F(SearchTest, TheJobThatItWritesSaysWhyAtEachField) {
  const SearchResult found = MustFind(int64_t{1} << 40, {"batch.micro_batch", "sharding.shard_ranks"});
  Drafter drafter(job_, machine_, limits_);
  const absl::StatusOr<Job> job = drafter.With(found.best.overrides);
  ASSERT_TRUE(job.ok()) << job.status();
  const std::string text = SearchedJobText(found, *job);
  const absl::StatusOr<Job> again = ParseJobText(text, "found");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, *job);
  EXPECT_THAT(text, HasSubstr("\n# The fastest way that fits, of "));
  const size_t batch = text.find("\nbatch {"), comment = text.find("  # plan --search: ", batch);
  ASSERT_NE(batch, text.npos) << text;
  ASSERT_NE(comment, text.npos) << text;
  EXPECT_LT(comment, text.find("  micro_batch: ", batch)) << text;
}

TEST_F(SearchTest, ARunDecidesWhatTheSearchFinds) {
  const Machine machine = KnownMachine();
  job_.runtime.search = {"batch.micro_batch", "sharding.strategy"};
  const absl::StatusOr<SearchResult> found =
      FindFastest({.job = job_, .machine = machine, .fields = job_.runtime.search});
  ASSERT_TRUE(found.ok()) << found.status();
  const absl::StatusOr<DecidedFields> decided = DecideFields(job_, DataFacts(), machine);
  ASSERT_TRUE(decided.ok()) << decided.status();
  EXPECT_EQ(absl::StrJoin(decided->settings, ", "),
            absl::StrCat(SettingsText(found->best.overrides, ", "), ", ", kNothingSearched));
  EXPECT_THAT(Unwrapped(decided->why), AllOf(HasSubstr("batch.micro_batch=4; "), HasSubstr("so they are estimates")));
  const absl::StatusOr<Job> job = WithOverrides(job_, decided->settings);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(WithSearchedFieldsOf(*job, job_), *job);

  EXPECT_THAT(std::string(DecideFields(job_, DataFacts(), machine_).status().message()),
              AllOf(HasSubstr("runtime.search: "), HasSubstr("measure it once (calibrate)")));
  job_.runtime.search = {"optimizer.rule"};
  EXPECT_THAT(std::string(DecideFields(job_, DataFacts(), machine).status().message()),
              HasSubstr("runtime.search: found \"optimizer.rule\"; allowed: sharding.strategy"));
}

// A resumed run keeps every field that its search may have decided.
TEST_F(SearchTest, EveryFieldOfASearchIsTakenFromAJobThatHasIt) {
  job_.runtime.device = DeviceType::kCuda;
  job_.runtime.collectives = CollectivesKind::kInProcess;
  job_.sharding.ranks = 4;
  job_.sharding.prefetch = 2;
  job_.memory.offload_state = {.moments = true, .parameters = true};
  job_.optimizer.max_gradient_norm = 0;
  job_.optimizer.non_finite = NonFinite::kSkip;
  job_.batch = {.global_batch = 64, .micro_batch = 2, .sequence_length = 512};
  std::get<DecoderConfig>(job_.model).max_positions = 512;
  std::vector<std::string> taken;
  for (const Option& option : Options()) {
    if (option.all == nullptr) continue;
    const std::string path(option.path);
    for (const Settings& settings : option.all(job_)) {
      const absl::StatusOr<Job> decided = Drafter(job_, machine_, limits_).With(settings);
      if (!decided.ok()) continue;
      Job open = job_;
      open.runtime.search = {path};
      EXPECT_EQ(WithSearchedFieldsOf(*decided, open), *decided) << SettingsText(settings, " ");
      if (!(*decided == job_) && (taken.empty() || taken.back() != path)) taken.push_back(path);
    }
  }
  EXPECT_THAT(taken, ::testing::UnorderedElementsAreArray(SearchFields()));

  // A strategy brings along no other field than what it set.
  Job former = job_, open = job_;
  former.sharding.prefetch = 1;
  open.runtime.search = {"sharding.strategy"};
  EXPECT_EQ(WithSearchedFieldsOf(former, open).sharding.prefetch, 2);
  former.sharding.strategy = Strategy::kZero1;
  EXPECT_EQ(WithSearchedFieldsOf(former, open).sharding.prefetch, 1);
}

TEST_F(SearchTest, RefusesFieldsThatItDoesNotKnow) {
  const absl::StatusOr<SearchResult> found = Find(1 << 30, {"optimizer.rule"});
  EXPECT_EQ(found.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(found.status().message()), HasSubstr("allowed: sharding.strategy"));
}

TEST_F(SearchTest, EndsWithWhatItHasAndPassesOnErrorsOfThePrediction) {
  job_.memory.budget_bytes = int64_t{1} << 40;
  const absl::StatusOr<SearchResult> few =
      FindFastest({.job = job_, .machine = machine_, .seconds = Seconds, .most_plans = 3});
  ASSERT_TRUE(few.ok()) << few.status();
  EXPECT_TRUE(few->ended_early);
  EXPECT_EQ(few->plans, 3);
  EXPECT_THAT(SearchText(*few), HasSubstr("not tried, because the search ended: "));
  const auto fail = [](const Job&, const Draft&) -> absl::StatusOr<double> { return absl::NotFoundError("no rates"); };
  EXPECT_EQ(FindFastest({.job = job_, .machine = machine_, .seconds = fail}).status(), absl::NotFoundError("no rates"));
}

}  // namespace
}  // namespace shale
