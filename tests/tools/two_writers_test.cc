// Starts two runs in the same folder: the second is refused, and the first is not disturbed.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/api/backend.h"
#include "engine/api/job.h"
#include "engine/api/trainer.h"
#include "engine/files/checkpoint/store.h"
#include "engine/files/io/file.h"
#include "tests/engine/files/checkpoint/survival.h"
#include "tests/engine/files/io/child_process.h"
#include "tests/engine/files/io/temp_folder.h"

namespace shale {
namespace {

TEST(TwoWriters, TheSecondTrainerOfAProcessIsRefusedWhateverTheFirstOneDoes) {
  const TempFolder temp;
  const absl::StatusOr<Job> job = ParseJobText(TinyJobText(temp.Write("text.txt", TinyText())), "job.textproto");
  ASSERT_TRUE(job.ok()) << job.status();
  const auto losses = [&](const std::string& folder, const auto& after_step) {
    Losses losses;
    auto trainer = Trainer::Create(*job, {.backend = CreateBackend(*job)->get(), .checkpoint_folder = folder});
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    const absl::Status status = (*trainer)->Run({.on_step = [&](const StepReport& report) {
      losses[report.step] = report.loss;
      after_step();
      return absl::OkStatus();
    }});
    EXPECT_TRUE(status.ok()) << status;
    return losses;
  };
  const std::string shared = temp.Path("shared"), alone = temp.Path("alone");
  const Losses disturbed = losses(shared, [&] {
    for (const ResumeFrom from : {ResumeFrom::kNothing, ResumeFrom::kLatestOrStart}) {
      const auto second = Trainer::Create(
          *job, {.backend = CreateBackend(*job)->get(), .checkpoint_folder = shared, .resume = {.from = from}});
      EXPECT_EQ(second.status(),
                absl::FailedPreconditionError(absl::StrCat("another run saves its checkpoints in ", shared,
                                                           ": wait until it ends, or choose another folder")));
    }
  });
  EXPECT_EQ(disturbed, losses(alone, [] {}));
  EXPECT_EQ(*WholeCheckpoints(shared), *WholeCheckpoints(alone));
  EXPECT_EQ(absl::StrJoin(Leftovers(shared), " "), "");
  // The first trainer is gone, so the folder is free.
  EXPECT_TRUE(Trainer::Create(*job, {.backend = CreateBackend(*job)->get(),
                                     .checkpoint_folder = shared,
                                     .resume = {.from = ResumeFrom::kLatest}})
                  .ok());
}

TEST(TwoWriters, ASecondProgramIsRefusedWithTheFolderAndTheReason) {
  const TempFolder temp;
  temp.Write("text.txt", TinyText());
  temp.Write("job.textproto", TinyJobText("text.txt"));
  // The run has so many steps that only a signal ends it.
  const auto command = [](const std::string& run, const std::string& flag) {
    std::vector<std::string> all = {"tools/train", "--job=job.textproto", "--set=lr_schedule.steps=1000000",
                                    absl::StrCat("--set=telemetry.run_folder=", run)};
    if (!flag.empty()) all.push_back(flag);
    return all;
  };
  const auto metrics = [&](const std::string& run) {
    std::vector<std::string> rows;
    const std::string text = ReadFile(temp.Path(run + "/metrics.jsonl"), 1 << 30).value_or("");
    for (absl::string_view row : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      // Drops the fields after the loss and the gradient's norm, because they depend on time.
      rows.emplace_back(row.substr(0, row.find("\"learning_rate\"")));
    }
    return rows;
  };
  const auto wait_for_rows = [&](ChildProcess& process, const std::string& run, size_t rows) {
    while (process.Running() && metrics(run).size() < rows) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  ChildProcess first(command("run", ""), temp.path(), temp.Path("first.log"));
  wait_for_rows(first, "run", 5);
  for (const std::string flag : {"", "--resume=auto", "--resume=latest", "--overwrite"}) {
    EXPECT_EQ(ChildProcess(command("run", flag), temp.path(), temp.Path("second.log")).Wait(), 2) << flag;
    EXPECT_EQ(*ReadFile(temp.Path("second.log"), 1 << 20),
              "train: another run is writing to run: wait until it ends, or choose another folder with "
              "telemetry.run_folder\n");
  }
  wait_for_rows(first, "run", metrics("run").size() + 5);
  EXPECT_TRUE(first.Running()) << *ReadFile(temp.Path("first.log"), 1 << 30);
  first.Signal(SIGTERM);
  EXPECT_EQ(first.Wait(), 128 + SIGTERM);
  const std::vector<std::string> disturbed = metrics("run");
  EXPECT_EQ(WholeCheckpoints(RunCheckpointsPath(temp.Path("run")))->front(), std::ssize(disturbed));

  // Its metrics equal those of a run that had the folder to itself.
  ChildProcess alone(command("alone", ""), temp.path(), temp.Path("alone.log"));
  wait_for_rows(alone, "alone", disturbed.size() + 1);
  alone.Kill();
  alone.Wait();
  std::vector<std::string> rows = metrics("alone");
  ASSERT_GT(rows.size(), disturbed.size());
  rows.resize(disturbed.size());
  EXPECT_EQ(rows, disturbed);
}

}  // namespace
}  // namespace shale
