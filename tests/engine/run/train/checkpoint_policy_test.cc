#include "engine/run/train/checkpoint_policy.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A run whose saves take `save_steps` steps, and that writes down what is asked of it.
class FakeRun : public CheckpointSaver {
 public:
  CheckpointReport Save() override {
    EXPECT_FALSE(pending_) << "a save is under way";
    log.push_back(absl::StrCat("save ", step));
    return Ended(step);
  }
  absl::Status StartSave() override {
    EXPECT_FALSE(pending_) << "a save is under way";
    log.push_back(absl::StrCat("start ", step));
    if (!start_status.ok()) return start_status;
    pending_ = step;
    return absl::OkStatus();
  }
  std::optional<CheckpointReport> TakeSave(Checkpointer::Wait wait) override {
    if (!pending_ || (wait == Checkpointer::Wait::kNo && step < *pending_ + save_steps)) return std::nullopt;
    if (step < *pending_ + save_steps) log.push_back(absl::StrCat("wait for ", *pending_));
    const CheckpointReport report = Ended(*pending_);
    pending_.reset();
    return report;
  }

  // Runs steps up to `last`, as Trainer::Run does. Returns the first error.
  absl::Status Run(CheckpointPolicy& policy, int64_t last) {
    absl::Status status;
    while (step < last && status.ok()) {
      ++step;
      status = policy.AfterStep(
          step, step == best_step, [&] { return step == last; }, on_checkpoint);
    }
    const absl::Status saved = policy.AtEnd(step, intact, on_checkpoint);
    return status.ok() ? saved : status;
  }

  int64_t step = 0;
  int64_t save_steps = 0;
  int64_t best_step = -1;     // The evaluation after this step is the best.
  int64_t failing_step = -1;  // The checkpoint of this step cannot be saved.
  absl::Status start_status;
  bool intact = true;
  std::vector<std::string> log;
  absl::Status callback_status;
  CheckpointPolicy::OnCheckpoint on_checkpoint = [this](const CheckpointReport& report) {
    log.push_back(absl::StrCat(report.status.ok() ? "saved " : "failed ", report.step));
    return callback_status;
  };

 private:
  CheckpointReport Ended(int64_t at) const {
    CheckpointReport report{.step = at, .path = absl::StrCat("step-", at)};
    if (at == failing_step) report.status = absl::UnavailableError("the disk is full");
    return report;
  }

  std::optional<int64_t> pending_;
};

TEST(CheckpointPolicy, SavesAfterTheBestEvaluationIfItIsToBeKept) {
  for (const bool keep : {false, true}) {
    FakeRun run;
    run.best_step = 3;
    CheckpointPolicy policy({.every_steps = 2, .keep_best = keep}, run);
    EXPECT_TRUE(run.Run(policy, 4).ok());
    if (keep) {
      EXPECT_THAT(run.log, ElementsAre("start 2", "saved 2", "start 3", "saved 3", "save 4", "saved 4"));
    } else {
      EXPECT_THAT(run.log, ElementsAre("start 2", "saved 2", "save 4", "saved 4"));
    }
  }
}

TEST(CheckpointPolicy, SavesAtTheIntervalAndAtTheEnd) {
  FakeRun run;
  CheckpointPolicy policy({.every_steps = 2}, run);
  EXPECT_TRUE(run.Run(policy, 5).ok());
  EXPECT_THAT(run.log, ElementsAre("start 2", "saved 2", "start 4", "saved 4", "save 5", "saved 5"));
}

TEST(CheckpointPolicy, WithoutAnIntervalSavesAtTheEndOnly) {
  FakeRun run;
  CheckpointPolicy policy({.every_steps = 0}, run);
  EXPECT_TRUE(run.Run(policy, 3).ok());
  EXPECT_THAT(run.log, ElementsAre("save 3", "saved 3"));
}

// A save that is due after the last step is the save at the end.
TEST(CheckpointPolicy, SavesTheLastStepOnce) {
  FakeRun run;
  CheckpointPolicy policy({.every_steps = 2}, run);
  EXPECT_TRUE(run.Run(policy, 4).ok());
  EXPECT_THAT(run.log, ElementsAre("start 2", "saved 2", "save 4", "saved 4"));
}

TEST(CheckpointPolicy, ARunWithoutNewStepsSavesNothing) {
  FakeRun run;
  run.step = 4;
  CheckpointPolicy policy({}, run);
  policy.SetSaved(4);
  EXPECT_TRUE(run.Run(policy, 4).ok());
  EXPECT_THAT(run.log, IsEmpty());
}

TEST(CheckpointPolicy, StepsWaitForASlowDisk) {
  FakeRun run;
  run.save_steps = 3;
  CheckpointPolicy policy({.every_steps = 2}, run);
  EXPECT_TRUE(run.Run(policy, 5).ok());
  EXPECT_THAT(run.log,
              ElementsAre("start 2", "wait for 2", "saved 2", "start 4", "wait for 4", "saved 4", "save 5", "saved 5"));
}

TEST(CheckpointPolicy, AFailedSaveEndsTheRunAndIsNotTriedAgain) {
  FakeRun run;
  run.failing_step = 2;
  CheckpointPolicy policy({.every_steps = 2, .on_failure = SaveFailure::kStop}, run);
  EXPECT_EQ(run.Run(policy, 9).message(), "the disk is full");
  EXPECT_EQ(run.step, 2);
  EXPECT_THAT(run.log, ElementsAre("start 2", "failed 2"));
}

TEST(CheckpointPolicy, AfterAFailedSaveTheRunGoesOnIfItMay) {
  FakeRun run;
  run.failing_step = 2;
  CheckpointPolicy policy({.every_steps = 2, .on_failure = SaveFailure::kContinue}, run);
  EXPECT_TRUE(run.Run(policy, 5).ok());
  EXPECT_THAT(run.log, ElementsAre("start 2", "failed 2", "start 4", "saved 4", "save 5", "saved 5"));
}

// The run must fail, because its last state is lost.
TEST(CheckpointPolicy, AFailedSaveAtTheEndIsAlwaysAnError) {
  for (const SaveFailure on_failure : {SaveFailure::kStop, SaveFailure::kContinue}) {
    FakeRun run;
    run.failing_step = 3;
    CheckpointPolicy policy({.on_failure = on_failure}, run);
    EXPECT_EQ(run.Run(policy, 3).message(), "the disk is full");
    EXPECT_THAT(run.log, ElementsAre("save 3", "failed 3"));
  }
}

TEST(CheckpointPolicy, ADamagedStateIsNotSavedButThePendingSaveIsAwaited) {
  FakeRun run;
  run.save_steps = 10;
  run.intact = false;
  CheckpointPolicy policy({.every_steps = 2}, run);
  EXPECT_TRUE(run.Run(policy, 3).ok());
  EXPECT_THAT(run.log, ElementsAre("start 2", "wait for 2", "saved 2"));
}

TEST(CheckpointPolicy, ASnapshotThatFailsEndsTheRun) {
  FakeRun run;
  run.start_status = absl::InternalError("the ranks failed");
  run.intact = false;
  CheckpointPolicy policy({.every_steps = 2, .on_failure = SaveFailure::kContinue}, run);
  EXPECT_EQ(run.Run(policy, 9).message(), "the ranks failed");
  EXPECT_THAT(run.log, ElementsAre("start 2"));
}

TEST(CheckpointPolicy, AnErrorOfTheCallbackEndsTheRunWhateverTheJobSays) {
  FakeRun run;
  run.callback_status = absl::CancelledError("enough");
  CheckpointPolicy policy({.every_steps = 2, .on_failure = SaveFailure::kContinue}, run);
  EXPECT_EQ(run.Run(policy, 9).message(), "enough");
  EXPECT_EQ(run.step, 2);
}

// `done` is asked after the report of an earlier save, because that report may have led to a stop.
TEST(CheckpointPolicy, AStopThatAReportLedToLeavesTheSaveToTheEnd) {
  FakeRun run;
  run.save_steps = 2;
  bool stop = false;
  CheckpointPolicy policy({.every_steps = 2}, run);
  const CheckpointPolicy::OnCheckpoint on_checkpoint = [&](const CheckpointReport& report) {
    stop = true;
    return run.on_checkpoint(report);
  };
  while (!stop) {
    ++run.step;
    ASSERT_TRUE(policy
                    .AfterStep(
                        run.step, false, [&] { return stop; }, on_checkpoint)
                    .ok());
  }
  EXPECT_EQ(run.step, 4);
  EXPECT_TRUE(policy.AtEnd(run.step, /*intact=*/true, on_checkpoint).ok());
  EXPECT_THAT(run.log, ElementsAre("start 2", "saved 2", "save 4", "saved 4"));
}

TEST(CheckpointPolicy, SaveNowWaitsForThePendingSaveAndReturnsThePath) {
  FakeRun run;
  run.save_steps = 10;
  CheckpointPolicy policy({.every_steps = 1}, run);
  run.step = 1;
  ASSERT_TRUE(policy
                  .AfterStep(
                      1, false, [] { return false; }, run.on_checkpoint)
                  .ok());
  EXPECT_EQ(policy.SaveNow().value(), "step-1");
  EXPECT_THAT(run.log, ElementsAre("start 1", "wait for 1", "save 1"));
  run.failing_step = 1;
  EXPECT_EQ(policy.SaveNow().status().message(), "the disk is full");
}

// Regression: the end of a run saved the step again that Trainer::SaveCheckpoint had just saved.
TEST(CheckpointPolicy, TheEndDoesNotSaveAgainWhatSaveNowSaved) {
  FakeRun run;
  CheckpointPolicy policy({.every_steps = 0}, run);
  run.step = 2;
  EXPECT_EQ(policy.SaveNow().value(), "step-2");
  EXPECT_TRUE(policy.AtEnd(run.step, /*intact=*/true, run.on_checkpoint).ok());
  EXPECT_THAT(run.log, ElementsAre("save 2"));
  EXPECT_TRUE(run.Run(policy, 3).ok());
  EXPECT_THAT(run.log, ElementsAre("save 2", "save 3", "saved 3"));
}

// A save that failed has saved nothing.
TEST(CheckpointPolicy, TheEndSavesWhatSaveNowCouldNotSave) {
  FakeRun run;
  run.step = run.failing_step = 2;
  CheckpointPolicy policy({.every_steps = 0}, run);
  EXPECT_FALSE(policy.SaveNow().ok());
  run.failing_step = -1;
  EXPECT_TRUE(policy.AtEnd(run.step, /*intact=*/true, run.on_checkpoint).ok());
  EXPECT_THAT(run.log, ElementsAre("save 2", "save 2", "saved 2"));
}

}  // namespace
}  // namespace shale
