// Kills training runs at random moments and starts them again, 300 times over all seeds. A run loses at most the steps
// that were not saved yet, and ends with the same results as a run that was never killed.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/files/checkpoint/store.h"
#include "engine/files/io/file.h"
#include "nlohmann/json.hpp"
#include "tests/engine/files/checkpoint/survival.h"
#include "tests/engine/files/io/child_process.h"
#include "tests/engine/files/io/temp_folder.h"

namespace shale {
namespace {

using Seconds = std::chrono::duration<double>;
using Clock = std::chrono::steady_clock;

constexpr int kSeeds = 6;
constexpr int kKills = 10;  // Per seed.
constexpr int64_t kSteps = 60, kInterval = 3;

// Returns step and loss of each complete line of a run's metrics.jsonl.
std::vector<std::pair<int64_t, double>> Metrics(const std::string& run) {
  std::vector<std::pair<int64_t, double>> rows;
  const std::string text = ReadFile(JoinPath(run, "metrics.jsonl"), 1 << 24).value_or("");
  std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  lines.pop_back();
  for (absl::string_view line : lines) {
    const auto row = nlohmann::json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(row.is_object()) << line;
    if (row.is_object()) rows.emplace_back(row["step"].get<int64_t>(), row["loss"].get<double>());
  }
  return rows;
}

class KillTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    temp_.Write("text.txt", TinyText());
    temp_.Write("job.textproto", TinyJobText("text.txt"));
  }
  static bool Asynchronous() { return GetParam() % 2 == 0; }
  std::string Run() const { return temp_.Path("run"); }
  std::string Log() const { return ReadFile(temp_.Path("log"), 1 << 24).value_or(""); }

  std::vector<std::string> Command(const std::string& run, const std::vector<std::string>& flags) const {
    std::vector<std::string> command = {
        "tools/train",
        "--job=job.textproto",
        absl::StrCat("--set=telemetry.run_folder=", run),
        absl::StrCat("--set=lr_schedule.steps=", kSteps),
        absl::StrCat("--set=checkpoint.every_steps=", kInterval),
        "--set=checkpoint.keep_every=12",
        absl::StrCat("--set=checkpoint.asynchronous=", Asynchronous() ? "true" : "false")};
    command.insert(command.end(), flags.begin(), flags.end());
    return command;
  }

  // Trains the reference run, which is not killed. Measures how long it takes to start and to train.
  void TrainUndisturbed() {
    const Clock::time_point begin = Clock::now();
    ChildProcess train(Command("reference", {}), temp_.path(), temp_.Path("log"));
    while (train.Running() && Metrics(temp_.Path("reference")).empty()) std::this_thread::sleep_for(Seconds(1e-3));
    start_ = Clock::now() - begin;
    ASSERT_EQ(train.Wait(), 0) << Log();
    training_ = Clock::now() - begin - start_;
    reference_ = Metrics(temp_.Path("reference"));
    ASSERT_EQ(reference_.size(), kSteps);
  }

  // Checks the files of a run that has ended or was killed.
  void ExpectWhole() {
    const auto rows = Metrics(Run());
    ASSERT_LE(rows.size(), kSteps);
    for (size_t i = 0; i < rows.size(); ++i)
      EXPECT_EQ(rows[i], reference_[i]) << "line " << i + 1 << " of metrics.jsonl";
    const absl::StatusOr<std::vector<int64_t>> whole = WholeCheckpoints(RunCheckpointsPath(Run()));
    ASSERT_TRUE(whole.ok()) << whole.status();
    const int64_t newest = whole->empty() ? 0 : whole->front();
    EXPECT_GE(newest, MustBeSaved(std::ssize(rows), kInterval, Asynchronous()));
    EXPECT_GE(newest, newest_) << "a checkpoint was lost";
    // A crash leaves at most two leftovers: of a save and of a removal in progress. They are removed before the next
    // crash can leave more.
    EXPECT_LE(Leftovers(RunCheckpointsPath(Run())).size(), 2);
    if (absl::StrContains(Log(), "\nstep ") && newest_ > 0) {
      EXPECT_TRUE(absl::StrContains(Log(), absl::StrCat("after step ", newest_, "\n"))) << Log();
    }
    EXPECT_FALSE(absl::StrContains(Log(), "skipped: ")) << Log();
    newest_ = newest;
  }

  void ExpectFinished() {
    ExpectWhole();
    EXPECT_EQ(Metrics(Run()), reference_);
    EXPECT_EQ(newest_, kSteps);
    EXPECT_EQ(absl::StrJoin(Leftovers(Run()), " "), "");
    EXPECT_EQ(absl::StrJoin(Leftovers(RunCheckpointsPath(Run())), " "), "");
  }

  TempFolder temp_;
  Seconds start_, training_;
  std::vector<std::pair<int64_t, double>> reference_;
  int64_t newest_ = 0;  // Step of the newest checkpoint at the last check.
};

TEST_P(KillTest, ARunThatIsKilledAgainAndAgainEndsAsOneThatWasNot) {
  ASSERT_NO_FATAL_FAILURE(TrainUndisturbed());
  std::mt19937 random(GetParam());
  const auto upto = [&](Seconds longest) { return std::uniform_real_distribution<>(0, 1)(random) * longest; };
  int kills = 0, runs = 0;
  while (kills < kKills) {
    SCOPED_TRACE(absl::StrCat("seed ", GetParam(), ", after ", kills, " kills"));
    ChildProcess train(Command("run", {"--resume=auto"}), temp_.path(), temp_.Path("log"));
    // Kills one in four while it starts, the others while they train.
    const Seconds delay = random() % 4 == 0 ? upto(start_) : 0.9 * start_ + upto(training_ / 6);
    const Clock::time_point deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(delay);
    while (train.Running() && Clock::now() < deadline) std::this_thread::sleep_for(Seconds(2e-4));
    train.Kill();
    const int end = train.Wait();
    ASSERT_TRUE(end == 0 || end == -SIGKILL) << end << "\n" << Log();
    if (end != 0) {
      ++kills;
      ASSERT_NO_FATAL_FAILURE(ExpectWhole());
    } else {
      ASSERT_NO_FATAL_FAILURE(ExpectFinished());
      std::filesystem::remove_all(Run());
      newest_ = 0;
      ++runs;
    }
    if (HasFailure()) return;
  }
  ChildProcess train(Command("run", {"--resume=auto"}), temp_.path(), temp_.Path("log"));
  ASSERT_EQ(train.Wait(), 0) << Log();
  ASSERT_NO_FATAL_FAILURE(ExpectFinished());
  std::printf("seed %d: %d kills in %d runs; %.0f ms to start, %.0f ms to train\n", GetParam(), kills, runs + 1,
              start_.count() * 1e3, training_.count() * 1e3);
}

TEST_P(KillTest, ARunThatIsKilledWhileItBeginsIsInNobodysWay) {
  ASSERT_NO_FATAL_FAILURE(TrainUndisturbed());
  for (int i = 0; i < kKills / 5; ++i) {
    // Spreads the delays evenly over all seeds.
    const Seconds delay = start_ * 1.2 * (i * kSeeds + GetParam()) / (kKills / 5 * kSeeds);
    SCOPED_TRACE(absl::StrCat("killed after ", delay.count(), " s"));
    std::filesystem::remove_all(Run());
    newest_ = 0;
    ChildProcess killed(Command("run", {"--resume=auto"}), temp_.path(), temp_.Path("log"));
    std::this_thread::sleep_for(delay);
    killed.Kill();
    const int end = killed.Wait();
    ASSERT_TRUE(end == 0 || end == -SIGKILL) << end << "\n" << Log();
    ASSERT_NO_FATAL_FAILURE(ExpectWhole());
    // The next run starts and trains: it writes its first rows.
    ChildProcess next(Command("run", {"--resume=auto"}), temp_.path(), temp_.Path("log"));
    while (next.Running() && Metrics(Run()).size() < 2) std::this_thread::sleep_for(Seconds(1e-3));
    ASSERT_GE(Metrics(Run()).size(), 2) << Log();
    next.Kill();
    next.Wait();
    ASSERT_NO_FATAL_FAILURE(ExpectWhole());
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, KillTest, ::testing::Range(1, kSeeds + 1));

}  // namespace
}  // namespace shale
