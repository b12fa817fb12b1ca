// Tests runs whose checkpoints cannot be written. Such a run reports the error, keeps the last good checkpoint, and
// stops or continues as the job asks.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "engine/api/backend.h"
#include "engine/api/job.h"
#include "engine/api/trainer.h"
#include "engine/files/checkpoint/store.h"
#include "engine/files/io/file.h"
#include "engine/run/train/run.h"
#include "engine/run/train/run_folder.h"
#include "kernels/check.h"
#include "nlohmann/json.hpp"
#include "tests/engine/files/checkpoint/survival.h"
#include "tests/engine/files/io/faulty_file_system.h"
#include "tests/engine/files/io/obey_permissions.h"
#include "tests/engine/files/io/temp_folder.h"

namespace shale {
namespace {

constexpr int kErrors[] = {ENOSPC, EIO, EROFS, EDQUOT};
constexpr int64_t kSteps = 6, kInterval = 2;  // The values in TinyJobText.

using Rows = std::vector<std::pair<int64_t, double>>;  // Step and loss of each line of metrics.jsonl.

struct Outcome {
  absl::Status status;
  std::set<int64_t> saved, failed;   // Steps that the run reported as saved or as failed.
  std::vector<std::string> reasons;  // The output lines that report the failed saves.
};

// The test parameters are checkpoint.on_failure and whether saves are asynchronous.
class FaultTest : public ::testing::TestWithParam<std::tuple<SaveFailure, bool>> {
 protected:
  void SetUp() override { text_ = temp_.Write("text.txt", TinyText()); }
  std::string Folder() const { return temp_.Path("run"); }
  std::string Checkpoints() const { return RunCheckpointsPath(Folder()); }

  static bool Stops() { return std::get<0>(GetParam()) == SaveFailure::kStop; }
  static bool Asynchronous() { return std::get<1>(GetParam()); }
  static std::vector<std::string> Overrides() {
    return {absl::StrCat("checkpoint.on_failure=", Stops() ? "STOP" : "CONTINUE"), "checkpoint.keep_last=1",
            absl::StrCat("checkpoint.asynchronous=", Asynchronous() ? "true" : "false")};
  }

  // Trains in Folder(), continuing the run that is there. Asks the run to stop after `last_step`.
  Outcome Train(FileSystem& files, const std::vector<std::string>& overrides, int64_t last_step = kSteps) const {
    Outcome outcome;
    outcome.status = Train(files, overrides, last_step, outcome);
    return outcome;
  }
  Outcome Train(const std::vector<std::string>& overrides, int64_t last_step = kSteps) const {
    return Train(PosixFileSystem(), overrides, last_step);
  }

  // Returns the steps of the checkpoints, newest first, or {0} if there are none. Expects each checkpoint to be whole.
  std::vector<int64_t> Whole() const {
    const absl::StatusOr<std::vector<int64_t>> steps = WholeCheckpoints(Checkpoints());
    EXPECT_TRUE(steps.ok()) << steps.status();
    return steps.ok() && !steps->empty() ? *steps : std::vector<int64_t>{0};
  }
  Rows Metrics() const {
    Rows rows;
    std::istringstream lines(ReadFile(JoinPath(Folder(), "metrics.jsonl"), 1 << 20).value_or(""));
    for (std::string line; std::getline(lines, line);) {
      const auto row = nlohmann::json::parse(line);
      rows.emplace_back(row["step"].get<int64_t>(), row["loss"].get<double>());
    }
    return rows;
  }
  // Returns the metrics of a run without faults.
  Rows Reference() {
    if (reference_.empty()) {
      const Job job = *ParseJobText(TinyJobText(text_), "job.textproto");
      auto trainer = Trainer::Create(job, {.backend = CreateBackend(job)->get()});
      EXPECT_TRUE(trainer.ok()) << trainer.status();
      EXPECT_TRUE((*trainer)
                      ->Run({.on_step =
                                 [this](const StepReport& report) {
                                   reference_.emplace_back(report.step, report.loss);
                                   return absl::OkStatus();
                                 }})
                      .ok());
    }
    return reference_;
  }

  // Continues the run on a disk that works again. Expects that it ends like a run without faults.
  void ExpectItEndsAsIfNothingHadBeen() {
    const Outcome outcome = Train({});
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_EQ(Metrics(), Reference());
    EXPECT_EQ(absl::StrJoin(Leftovers(Checkpoints()), " "), "");
    EXPECT_EQ(Whole().front(), kSteps);
  }

  // Checks what must hold of every run whose disk failed with `error`.
  void ExpectItIsSaid(const Outcome& outcome, int error) {
    const std::string message(outcome.status.message());
    for (const std::string& reason : outcome.reasons) {
      EXPECT_NE(reason.find(strerror(error)), std::string::npos) << reason;
      EXPECT_NE(reason.find(Checkpoints()), std::string::npos) << reason;
    }
    // A run that continues after failed saves fails only if its last state is not saved.
    const bool must_fail = Stops() ? !outcome.failed.empty() : outcome.failed.count(kSteps) > 0;
    EXPECT_EQ(outcome.status.ok(), !must_fail) << message;
    if (must_fail) {
      EXPECT_EQ(message, outcome.reasons.back());
    }
    if (Stops()) {
      EXPECT_LE(outcome.failed.size(), 1);
      // The run stops at once. While an asynchronous save fails, at most one more interval passes.
      const int64_t last = Metrics().back().first;
      if (must_fail) {
        EXPECT_LE(last, *outcome.failed.begin() + (Asynchronous() ? kInterval : 0));
      }
    } else {
      EXPECT_EQ(Metrics(), Reference());
    }
  }

  TempFolder temp_;

 private:
  absl::Status Train(FileSystem& files, const std::vector<std::string>& overrides, int64_t last_step,
                     Outcome& outcome) const {
    SHALE_ASSIGN_OR_RETURN(const Job job, ParseJobText(TinyJobText(text_), "job.textproto", overrides));
    SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<RunFolder> folder,
                           RunFolder::Claim(Folder(), RunFolder::Existing::kContinue));
    SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                           Trainer::Create(job, {.backend = CreateBackend(job)->get(),
                                                 .checkpoint_folder = Checkpoints(),
                                                 .resume = {.from = ResumeFrom::kLatestOrStart},
                                                 .files = &files}));
    RunFolder::Start start{.job_text = "job", .plan_text = "plan"};
    if (!trainer->resumed().path.empty()) start.goes_on_after = trainer->resumed().manifest.step;
    SHALE_RETURN_IF_ERROR(folder->Begin(start));
    const std::string last = absl::StrCat("step ", last_step, "/");
    return TrainToEnd(*trainer, *folder, [&](absl::string_view line) {
      Read(line, outcome);
      if (absl::StartsWith(line, last)) trainer->RequestStop();
    });
  }

  // Adds to `outcome` what an output line of the run says about a checkpoint.
  static void Read(absl::string_view line, Outcome& outcome) {
    int64_t step = 0;
    if (absl::StartsWith(line, "saved ")) {
      EXPECT_TRUE(absl::SimpleAtoi(line.substr(line.find("/step-") + 6, 10), &step)) << line;
      outcome.saved.insert(step);
    } else if (absl::ConsumePrefix(&line, "NOT SAVED: ")) {
      EXPECT_EQ(sscanf(std::string(line).c_str(), "cannot save the checkpoint of step %ld: ", &step), 1) << line;
      outcome.failed.insert(step);
      outcome.reasons.emplace_back(line);
    }
  }

  std::string text_;
  Rows reference_;
};

// Each operation meets each error in one of the four kinds of runs.
TEST_P(FaultTest, AnErrorAtAnyOperationIsSaidAndTheNextSaveWorks) {
  const int64_t kind = 2 * Stops() + Asynchronous();
  for (int64_t n = 1;; n += FaultStride()) {
    const int error = kErrors[(n + kind) % std::size(kErrors)];
    std::filesystem::remove_all(Folder());
    FaultyFileSystem files({.kind = Fault::Kind::kError, .first = n, .error_number = error});
    const Outcome outcome = Train(files, Overrides());
    const bool met = files.operations() >= n;
    SCOPED_TRACE(absl::StrCat(strerror(error), " at operation ", n, ": ", met ? files.log()[n - 1] : "none"));
    ExpectItIsSaid(outcome, error);
    const std::vector<int64_t> whole = Whole();
    EXPECT_EQ(whole.front(), outcome.saved.empty() ? 0 : *outcome.saved.rbegin());
    for (int64_t step : outcome.failed) EXPECT_EQ(std::count(whole.begin(), whole.end(), step), 0) << step;
    EXPECT_LE(outcome.failed.size(), 1);
    if (!Stops() || outcome.failed.empty()) {
      EXPECT_EQ(outcome.saved.size() + outcome.failed.size(), kSteps / kInterval);
    }
    ExpectItEndsAsIfNothingHadBeen();
    if (HasFailure()) return;
    if (!met) break;
  }
}

TEST_P(FaultTest, ADiskThatFailsForEverLeavesTheLastGoodCheckpoint) {
  for (int64_t n = 1;; n += FaultStride()) {
    const int error = kErrors[n % std::size(kErrors)];
    std::filesystem::remove_all(Folder());
    FaultyFileSystem files({.kind = Fault::Kind::kError, .first = n, .count = Fault::kForEver, .error_number = error});
    const Outcome outcome = Train(files, Overrides());
    const bool met = files.operations() >= n;
    SCOPED_TRACE(absl::StrCat(strerror(error), " from operation ", n, " on: ", met ? files.log()[n - 1] : "none"));
    ExpectItIsSaid(outcome, error);
    // A checkpoint that could be neither flushed nor removed is there and whole, although nobody may rely on it.
    EXPECT_GE(Whole().front(), outcome.saved.empty() ? 0 : *outcome.saved.rbegin());
    ExpectItEndsAsIfNothingHadBeen();
    if (HasFailure()) return;
    if (!met) break;
  }
}

TEST_P(FaultTest, AFolderThatMayNotBeWrittenIsSaid) {
  ASSERT_TRUE(Train({}, 4).status.ok());
  ASSERT_EQ(chmod(Checkpoints().c_str(), 0555), 0);
  Outcome outcome;
  {
    const ObeyPermissions obey;
    outcome = Train(Overrides());
  }
  ASSERT_EQ(chmod(Checkpoints().c_str(), 0755), 0);
  EXPECT_EQ(outcome.failed, (std::set<int64_t>{6}));
  ExpectItIsSaid(outcome, EACCES);
  EXPECT_EQ(Whole(), (std::vector<int64_t>{4, 2}));
  ExpectItEndsAsIfNothingHadBeen();
}

// The limit on the size of files is the only quota-like limit that any process may set.
TEST_P(FaultTest, ALimitOnTheSizeOfFilesIsSaid) {
  ASSERT_TRUE(Train({}, 2).status.ok());
  struct rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const struct rlimit now = {.rlim_cur = 20'000, .rlim_max = before.rlim_max};  // Only shards are larger.
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &now), 0);
  const Outcome outcome = Train(Overrides());
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, handler);
  EXPECT_EQ(outcome.failed, Stops() ? (std::set<int64_t>{4}) : (std::set<int64_t>{4, 6}));
  ExpectItIsSaid(outcome, EFBIG);
  EXPECT_EQ(absl::StrJoin(Leftovers(Checkpoints()), " "), "");
  EXPECT_EQ(Whole(), (std::vector<int64_t>{2}));
  ExpectItEndsAsIfNothingHadBeen();
}

TEST_P(FaultTest, AFullDiskIsSaidAndEmptiedAgain) {
  // The mounts of a private namespace end with the process.
  if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    GTEST_SKIP() << "no right to mount: " << strerror(errno);
  }
  ASSERT_TRUE(MakeFolders(Checkpoints()).ok());
  // The file system below has room for the files of one checkpoint, rounded up to pages, but not of two.
  temp_.Write("run/job.textproto", "job");  // With a plan, the folder is that of a run.
  temp_.Write("run/plan.txt", "plan");
  if (mount("none", Checkpoints().c_str(), "tmpfs", 0, "size=112k") != 0) {
    GTEST_SKIP() << "no right to mount: " << strerror(errno);
  }
  const Outcome outcome = Train(Overrides());
  EXPECT_EQ(outcome.saved, (std::set<int64_t>{2}));
  EXPECT_EQ(outcome.failed, Stops() ? (std::set<int64_t>{4}) : (std::set<int64_t>{4, 6}));
  ExpectItIsSaid(outcome, ENOSPC);
  EXPECT_EQ(absl::StrJoin(Leftovers(Checkpoints()), " "), "");
  EXPECT_EQ(Whole(), (std::vector<int64_t>{2}));
  EXPECT_EQ(mount("none", Checkpoints().c_str(), "tmpfs", MS_REMOUNT, "size=1m"), 0);
  ExpectItEndsAsIfNothingHadBeen();
  EXPECT_EQ(umount(Checkpoints().c_str()), 0);
}

std::string NameOf(const std::tuple<SaveFailure, bool>& parameter) {
  return absl::StrCat(std::get<0>(parameter) == SaveFailure::kStop ? "Stop" : "Continue",
                      std::get<1>(parameter) ? "Asynchronous" : "Blocking");
}

INSTANTIATE_TEST_SUITE_P(Runs, FaultTest,
                         ::testing::Combine(::testing::Values(SaveFailure::kStop, SaveFailure::kContinue),
                                            ::testing::Bool()),
                         [](const auto& test) { return NameOf(test.param); });

}  // namespace
}  // namespace shale
