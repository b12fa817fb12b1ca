// Kills a run at every file operation, one operation per run. The checkpoints that it leaves are always whole, and the
// run that continues from them cannot be told from one that was never killed.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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

constexpr int64_t kSteps = 6, kInterval = 2;  // The values in TinyJobText.

// What kill_victim reported before it ended.
struct Progress {
  Losses losses;
  int64_t operations = 0;  // Set only if it was not killed.
  int64_t last_step() const { return losses.empty() ? 0 : losses.rbegin()->first; }
};

Progress ReadProgress(const std::string& path) {
  Progress progress;
  std::ifstream in(path);
  for (std::string step, value; in >> step >> value;) {
    if (step == "end") {
      progress.operations = std::atoll(value.c_str());
    } else {
      progress.losses[std::atoll(step.c_str())] = std::strtod(value.c_str(), nullptr);
    }
  }
  return progress;
}

// The test parameter says whether saves are asynchronous.
class KillTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    text_ = temp_.Write("text.txt", TinyText());
    temp_.Write("job.textproto", TinyJobText(text_));
    overrides_ = {GetParam() ? "checkpoint.asynchronous=true" : "checkpoint.asynchronous=false"};
  }

  Job MakeJob() const {
    const absl::StatusOr<Job> job = LoadJob(temp_.Path("job.textproto"), overrides_);
    EXPECT_TRUE(job.ok()) << job.status();
    return job.value_or(Job());
  }

  // Trains in this process, to the end or to `last_step`. Stores in `began_after` the step from which it resumed.
  Losses Train(const std::string& folder, ResumeFrom from, int64_t* began_after = nullptr, int64_t last_step = -1) {
    Losses losses;
    auto trainer = Trainer::Create(
        MakeJob(), {.backend = CreateBackend(MakeJob())->get(), .checkpoint_folder = folder, .resume = {.from = from}});
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    if (!trainer.ok()) return losses;
    if (began_after != nullptr) *began_after = (*trainer)->resumed().manifest.step;
    EXPECT_TRUE((*trainer)->resumed().passed_over.empty()) << absl::StrJoin((*trainer)->resumed().passed_over, "\n");
    EXPECT_EQ(absl::StrJoin(Leftovers(folder), " "), "");
    const absl::Status status = (*trainer)->Run({.on_step = [&](const StepReport& report) {
      losses[report.step] = report.loss;
      if (report.step == last_step) (*trainer)->RequestStop();
      return absl::OkStatus();
    }});
    EXPECT_TRUE(status.ok()) << status;
    return losses;
  }

  // Runs kill_victim, which trains in `folder` and is killed at operation n. Returns false if it finished before that.
  bool Kill(const std::string& folder, const std::string& resume, const char* kind, int64_t n, Progress* progress) {
    const std::string told = temp_.Path("progress");
    unlink(told.c_str());
    std::vector<std::string> arguments = {"tests/engine/files/checkpoint/kill_victim",
                                          temp_.Path("job.textproto"),
                                          folder,
                                          resume,
                                          told,
                                          kind,
                                          absl::StrCat(n)};
    arguments.insert(arguments.end(), overrides_.begin(), overrides_.end());
    const int end = ChildProcess(arguments).Wait();
    *progress = ReadProgress(told);
    EXPECT_TRUE(end == -SIGKILL || (end == 0 && progress->operations > 0)) << end;
    return end != 0;
  }

  // Kills a run at each operation in turn, and continues from what is left. Each run starts in a copy of `before`, or
  // without a folder if `before` is empty. `always` lists the steps whose checkpoints may never be missing, newest
  // first.
  void KillEverywhere(const std::string& before, const std::string& resume, const std::vector<int64_t>& always) {
    const Losses straight = Train(temp_.Path("straight"), ResumeFrom::kNothing);
    ASSERT_EQ(straight.size(), kSteps);
    const std::string last = CheckpointFolderName(kSteps), folder = temp_.Path("run");
    int64_t kills = 0, operations = 0;
    for (const char* kind : {"before", "midway"}) {
      for (int64_t n = 1;; n += FaultStride()) {
        SCOPED_TRACE(absl::StrCat("killed ", kind, " operation ", n));
        std::filesystem::remove_all(folder);
        if (!before.empty()) std::filesystem::copy(before, folder, std::filesystem::copy_options::recursive);
        Progress progress;
        const bool killed = Kill(folder, resume, kind, n, &progress);
        for (const auto& [step, loss] : progress.losses) EXPECT_EQ(loss, straight.at(step)) << "step " << step;
        // All readers find whole checkpoints only, even before the next run has cleaned up.
        const absl::StatusOr<std::vector<int64_t>> left = WholeCheckpoints(folder);
        ASSERT_TRUE(left.ok()) << left.status();

        int64_t began_after = 0;
        const Losses resumed = Train(folder, ResumeFrom::kLatestOrStart, &began_after);
        const int64_t newest_required =
            std::max(MustBeSaved(progress.last_step(), kInterval, GetParam()), always.empty() ? 0 : always.front());
        EXPECT_GE(began_after, newest_required);
        EXPECT_GE(began_after, left->empty() ? 0 : left->front());
        for (const auto& [step, loss] : resumed) EXPECT_EQ(loss, straight.at(step)) << "step " << step;
        EXPECT_EQ(resumed.size(), kSteps - began_after);
        const absl::StatusOr<std::vector<int64_t>> whole = WholeCheckpoints(folder);
        ASSERT_TRUE(whole.ok()) << whole.status();
        for (int64_t step : always) EXPECT_EQ(std::count(whole->begin(), whole->end(), step), 1) << step;
        EXPECT_EQ(absl::StrJoin(Leftovers(folder), " "), "");
        const absl::Status same = SameFiles(JoinPath(temp_.Path("straight"), last), JoinPath(folder, last));
        EXPECT_TRUE(same.ok()) << same;
        if (::testing::Test::HasFailure()) return;
        if (!killed) {
          operations = progress.operations;
          break;
        }
        ++kills;
      }
    }
    RecordProperty("operations", static_cast<int>(operations));
    RecordProperty("kills", static_cast<int>(kills));
    std::printf("%d kills at %d operations\n", static_cast<int>(kills), static_cast<int>(operations));
  }

  TempFolder temp_;
  std::string text_;
  std::vector<std::string> overrides_;
};

// Three saves; the second one removes the checkpoint of the first.
TEST_P(KillTest, ARunThatThinsOutItsCheckpointsIsKilledAtEveryOperation) {
  overrides_.push_back("checkpoint.keep_last=1");
  KillEverywhere("", "auto", {});
}

// Saving a step again replaces its checkpoint, which is never lost on the way.
TEST_P(KillTest, ARunThatReplacesACheckpointIsKilledAtEveryOperation) {
  overrides_.push_back("checkpoint.keep_last=9");
  const std::string before = temp_.Path("before");
  Train(before, ResumeFrom::kNothing, nullptr, 4);
  KillEverywhere(before, "again", {4, 2});
}

INSTANTIATE_TEST_SUITE_P(Saves, KillTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Asynchronous" : "Blocking"; });

}  // namespace
}  // namespace shale
