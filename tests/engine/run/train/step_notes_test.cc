// What the processes of a job tell each other about a step, and what they conclude from it.
#include <string>
#include <utility>
#include <vector>

#include "engine/run/train/processes.h"
#include "engine/run/train/run_watch.h"
#include "engine/run/train/state_check.h"
#include "engine/run/train/step_contract.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sharding/comm/control_plane.h"
#include "sharding/mesh.h"
#include "tests/engine/run/runtime/two_ranks.h"

namespace shale::testing {
namespace {

using ::testing::HasSubstr;

TEST(ReplicaCheckTest, ReducedValuesThatDifferAreNamed) {
  std::vector<RankDigest> ranks;
  for (int rank = 0; rank < 6; ++rank) ranks.push_back({.rank = rank, .loss = 2, .squared_norm = 3});
  const Mesh mesh{.replicate = 3, .shard = 2};
  const auto with = [&](int rank, const RankDigest& digest) {
    std::vector<RankDigest> changed = ranks;
    changed[rank] = digest;
    return std::string(CheckReplicas(mesh, 8, std::move(changed)).message());
  };
  EXPECT_EQ(with(4, ranks[4]), "");
  EXPECT_THAT(with(4, {.rank = 4, .loss = 2, .squared_norm = 3.5}),
              HasSubstr("after step 8 rank 4 differs from ranks 0, 1, 2, 3, 5 in the reduced norm of the gradient"));
  EXPECT_THAT(with(0, {.rank = 0, .loss = -2, .squared_norm = 3}), HasSubstr("rank 0 differs from ranks 1, 2, 3, 4, 5 "
                                                                             "in the reduced loss"));
  EXPECT_THAT(with(3, {.rank = 3, .state = {.column = 7}, .loss = 2, .squared_norm = 3}),
              HasSubstr("rank 3 differs from ranks 1, 5 in weights or optimizer state"));
  std::vector<RankDigest> read;
  ASSERT_TRUE(ParseDigests(SerializeDigests(ranks), read).ok());
  EXPECT_EQ(SerializeDigests(read), SerializeDigests(ranks));
  EXPECT_EQ(ParseDigests("1 2 3", read).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(ParseDigests("1 2 3 4 -5", read).code(), absl::StatusCode::kInternal);
}

TEST(StragglerMonitorTest, ARankThatIsSlowForTwentyStepsIsNamedOnce) {
  StragglerMonitor monitor;
  // All ranks take 1.3 s. Rank 2 makes the others wait for 0.25 s, which is more than 20 % of the 1.05 s that they
  // work.
  const std::vector<double> slow = {0.35, 0.35, 0.1, 0.35}, even = {0.3, 0.3, 0.1, 0.3};
  for (int step = 1; step < 60; ++step) {
    const std::string line = monitor.Add(1.3, slow);
    EXPECT_EQ(line.empty(), step != 20) << step;
    if (step == 20) {
      EXPECT_EQ(line,
                "slow: rank 2 took more than 20 % longer than the median rank in each of 20 steps; of the last "
                "step's 1.3 s, the median rank worked 1.05 s");
    }
  }
  EXPECT_EQ(monitor.Add(1.3, even), "");  // Once it has kept up, it may be named again.
  for (int step = 1; step <= 20; ++step) EXPECT_EQ(monitor.Add(1.3, slow).empty(), step != 20) << step;
}

TEST(StragglerMonitorTest, RanksThatKeepUpAreNotNamed) {
  StragglerMonitor monitor;
  for (int step = 0; step < 100; ++step) {
    EXPECT_EQ(monitor.Add(1.3, {0.3, 0.1, 0.3}), "");  // A little slower.
    EXPECT_EQ(monitor.Add(1, step % 19 == 0 ? std::vector<double>{0, 0, 0} : std::vector<double>{0, 0.5, 0.5}), "");
    EXPECT_EQ(StragglerMonitor().Add(1, {0.5}), "");  // Alone.
  }
}

// The control plane of process 0 of two. The other one sends `note` after each step.
class WithAnother : public ControlPlane {
 public:
  int process() const override { return 0; }
  int processes() const override { return 2; }
  absl::StatusOr<std::vector<std::string>> Gather(ControlChannel, std::string message) override {
    return std::vector<std::string>{std::move(message), Serialize(note)};
  }
  absl::StatusOr<std::string> Broadcast(ControlChannel, std::string message) override { return message; }
  absl::Status Barrier(ControlChannel) override { return absl::OkStatus(); }

  StepNote note;
};

// The rank for which others wait works longest: its collectives run alone for the least time.
TEST(RankTimesTest, TheOwnTimeOfARankIsWithoutCollectivesThatRunAlone) {
  const RankTimes early = TimesOfRank(SmallProgram(), kTwoRanks, 0, kEarly, 1000e-9);
  const RankTimes late = TimesOfRank(SmallProgram(), kTwoRanks, 1, kLate, 1000e-9);
  EXPECT_EQ(late.rank, 1);
  EXPECT_NEAR(early.own_seconds, 600e-9, 1e-15);  // 400 alone.
  EXPECT_NEAR(late.own_seconds, 930e-9, 1e-15);   // 70 alone.
  EXPECT_NEAR(early.seconds.at(kBetweenInstructions), 100e-9, 1e-15);
  EXPECT_NEAR(late.seconds.at(kBetweenInstructions), 30e-9, 1e-15);
  EXPECT_NEAR(late.seconds.at(kBetweenSteps), 200e-9, 1e-15);
  EXPECT_NEAR(late.seconds.at(KindText(WorkOf(SmallProgram().instructions[0], kTwoRanks), StreamId::kCompute)), 700e-9,
              1e-15);
  EXPECT_EQ(late.seconds.size(), 4u);
}

// Only process 0 knows what was predicted. Yet all processes trace the step that it wants, and it hears what the rank
// did that worked longest, wherever that is. The warning of a job in several processes once named no cause.
TEST(StepMonitorTest, ProcessesHearOfTheRankThatWorkedLongest) {
  WithAnother control;
  StepMonitor monitor(2, /*vocabulary=*/0, /*peak_flops=*/0, control);
  StepReport report;
  for (const bool wants_trace : {true, false}) {
    control.note = {.wants_trace = wants_trace, .waited_ns = {{1, 0}}};
    ASSERT_TRUE(monitor.AfterStep({.waited_ns = {{0, 0}}}, report).ok());
    EXPECT_EQ(monitor.wants_trace(), wants_trace);
    EXPECT_EQ(monitor.longest_of_job().rank, -1);
  }
  for (const double seconds : {0.5, 2.0}) {
    control.note.longest = {.rank = 1, .own_seconds = seconds, .seconds = {{"MatMul", seconds}}};
    const RankTimes mine = {.rank = 0, .own_seconds = 1, .seconds = {{"MatMul", 1}}};
    ASSERT_TRUE(monitor.AfterStep({.waited_ns = {{0, 0}}, .wants_trace = true, .longest = mine}, report).ok());
    EXPECT_TRUE(monitor.wants_trace());
    EXPECT_EQ(monitor.longest_of_job().rank, seconds > 1 ? 1 : 0);
    EXPECT_EQ(monitor.longest_of_job().seconds.at("MatMul"), seconds > 1 ? 2 : 1);
  }
}

TEST(StragglerMonitorTest, NotesOfAStepAreReadAsTheyWereWritten) {
  const RankTimes longest = {
      .rank = 4, .own_seconds = 1.0 / 3, .seconds = {{"Copy f32 (stream compute)", 0.1}, {"between", 0.25}}};
  for (const RankTimes& rank : {longest, RankTimes()}) {
    const StepNote note = {.stop = rank.rank < 0,
                           .wants_trace = rank.rank >= 0,
                           .peak_bytes = 77,
                           .flops = 1e21 / 3,
                           .waited_ns = {{3, 5'000'000'000}, {4, 0}},
                           .longest = rank};
    const absl::StatusOr<StepNote> read = ParseStepNote(Serialize(note));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->stop, note.stop);
    EXPECT_EQ(read->wants_trace, note.wants_trace);
    EXPECT_EQ(read->peak_bytes, 77);
    EXPECT_EQ(read->flops, note.flops);
    EXPECT_EQ(read->waited_ns, note.waited_ns);
    EXPECT_EQ(read->longest.rank, rank.rank);
    EXPECT_EQ(read->longest.own_seconds, rank.own_seconds);
    EXPECT_EQ(read->longest.seconds, rank.seconds);
  }
  for (const char* wrong : {"", "1", "1 0 2", "1 0 2 x", "1 0 2 3 4", "1 0 2 3 4 99999999999999999999", "1 0 2 3\n",
                            "1 0 2 3\n4", "1 0 2 3\n4 x", "1 0 2 3\n4 1\n1", "1 0 2 3\n4 1\nx Copy"}) {
    EXPECT_EQ(ParseStepNote(wrong).status().code(), absl::StatusCode::kInternal) << wrong;
  }
}

}  // namespace
}  // namespace shale::testing
