#include "engine/train/run_folder.h"

#include <linux/capability.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/checkpoint/run_paths.h"
#include "engine/io/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

using ::testing::HasSubstr;
using Existing = RunFolder::Existing;

// Takes the capabilities of the calling thread away until the end of the scope, so that file permissions hold even for
// root.
class WithoutPrivileges {
 public:
  WithoutPrivileges() {
    syscall(SYS_capget, &header_, before_);
    __user_cap_data_struct none[2] = {before_[0], before_[1]};
    none[0].effective = none[1].effective = 0;
    syscall(SYS_capset, &header_, none);
  }
  ~WithoutPrivileges() { syscall(SYS_capset, &header_, before_); }

 private:
  __user_cap_header_struct header_ = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct before_[2] = {};
};

class RunFolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = JoinPath(::testing::TempDir(), "run_folder_XXXXXX");
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  std::string Path(absl::string_view name) const { return JoinPath(root_, name); }
  static bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }
  static std::string Text(const std::string& path) { return ReadFile(path, 1 << 20).value_or("(missing)"); }
  // Writes the folder of a finished run.
  void MakeRun(const std::string& path) {
    auto folder = RunFolder::Claim(path, Existing::kRefuse);
    ASSERT_TRUE(folder.ok()) << folder.status();
    ASSERT_TRUE((*folder)->Begin({.job_text = "job one", .plan_text = "plan one"}).ok());
    ASSERT_TRUE((*folder)->AppendMetrics(JsonObject().Add("step", 1)).ok());
    const std::string checkpoint = JoinPath((*folder)->checkpoints_path(), "step-0000000001");
    ASSERT_TRUE(MakeFolders(checkpoint).ok());
    ASSERT_TRUE(WriteFileDurably(JoinPath(checkpoint, "MANIFEST"), "state one").ok());
  }
  std::string root_;
};

TEST_F(RunFolderTest, ARunLeavesJobPlanAndMetrics) {
  MakeRun(Path("a/b"));
  EXPECT_EQ(Text(Path("a/b/job.textproto")), "job one");
  EXPECT_EQ(Text(Path("a/b/plan.txt")), "plan one");
  EXPECT_EQ(Text(Path("a/b/metrics.jsonl")), "{\"step\": 1}\n");
  EXPECT_EQ(RunJobPath(Path("a/b")), Path("a/b/job.textproto"));
  EXPECT_EQ(RunCheckpointsPath(Path("a/b")), Path("a/b/checkpoints"));
}

TEST_F(RunFolderTest, AnEarlierRunIsRefusedWithTheWayOutAndKeepsEverything) {
  MakeRun(Path("run"));
  const absl::Status status = RunFolder::Claim(Path("run"), Existing::kRefuse).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(status.message(), "the run folder " + Path("run") +
                                  " is not empty (checkpoints, job.textproto, metrics.jsonl, plan.txt): choose another "
                                  "with telemetry.run_folder, resume that run with --resume=latest, or replace it "
                                  "with --overwrite");
  EXPECT_EQ(Text(Path("run/job.textproto")), "job one");
  EXPECT_EQ(Text(Path("run/checkpoints/step-0000000001/MANIFEST")), "state one");
}

TEST_F(RunFolderTest, ReplacingLosesNothingBeforeTheNewRunBegins) {
  MakeRun(Path("run"));
  ASSERT_TRUE(WriteFileDurably(Path("run/notes.txt"), "mine").ok());
  { ASSERT_TRUE(RunFolder::Claim(Path("run"), Existing::kReplace).ok()); }
  EXPECT_EQ(Text(Path("run/checkpoints/step-0000000001/MANIFEST")), "state one");
  EXPECT_EQ(Text(Path("run/metrics.jsonl")), "{\"step\": 1}\n");

  auto folder = RunFolder::Claim(Path("run"), Existing::kReplace);
  ASSERT_TRUE(folder.ok()) << folder.status();
  ASSERT_TRUE((*folder)->Begin({.job_text = "job two", .plan_text = "plan two"}).ok());
  EXPECT_EQ(Text(Path("run/job.textproto")), "job two");
  EXPECT_EQ(Text(Path("run/metrics.jsonl")), "");
  EXPECT_FALSE(Exists(Path("run/checkpoints/step-0000000001")));
  EXPECT_EQ(Text(Path("run/notes.txt")), "mine");
}

TEST_F(RunFolderTest, ARunThatGoesOnKeepsItsCheckpointsAndTheMetricsUpToItsStep) {
  MakeRun(Path("run"));
  ASSERT_TRUE(WriteFileDurably(Path("run/metrics.jsonl"),
                               "{\"step\": 1}\n{\"step\": 2, \"loss\": 1.5}\nbroken\n{\"step\": 3}\n{\"st")
                  .ok());
  ASSERT_TRUE(WriteFileDurably(Path("run/.plan.txt.tmp-1-2"), "half").ok());
  auto folder = RunFolder::Claim(Path("run"), Existing::kContinue);
  ASSERT_TRUE(folder.ok()) << folder.status();
  ASSERT_TRUE((*folder)->Begin({.job_text = "job two", .plan_text = "plan two", .goes_on_after = 2}).ok());
  ASSERT_TRUE((*folder)->AppendMetrics(JsonObject().Add("step", 3)).ok());
  EXPECT_EQ(Text(Path("run/metrics.jsonl")), "{\"step\": 1}\n{\"step\": 2, \"loss\": 1.5}\n{\"step\": 3}\n");
  EXPECT_EQ(Text(Path("run/job.textproto")), "job two");
  EXPECT_EQ(Text(Path("run/checkpoints/step-0000000001/MANIFEST")), "state one");
  EXPECT_FALSE(Exists(Path("run/.plan.txt.tmp-1-2")));
}

// A run that is stopped before its first step saves a checkpoint of step 0.
TEST_F(RunFolderTest, ARunThatGoesOnFromStepZeroKeepsItsCheckpointToo) {
  MakeRun(Path("run"));
  auto folder = RunFolder::Claim(Path("run"), Existing::kContinue);
  ASSERT_TRUE(folder.ok()) << folder.status();
  ASSERT_TRUE((*folder)->Begin({.job_text = "job two", .plan_text = "plan two", .goes_on_after = 0}).ok());
  EXPECT_EQ(Text(Path("run/metrics.jsonl")), "");
  EXPECT_EQ(Text(Path("run/checkpoints/step-0000000001/MANIFEST")), "state one");
}

TEST_F(RunFolderTest, TheFormerRunIsThereUntilAllIsReadThatTheNewOneNeeds) {
  MakeRun(Path("run"));
  ASSERT_TRUE(MakeFolders(Path("model")).ok());
  ASSERT_TRUE(WriteFileDurably(Path("model/config.json"), "{}").ok());
  ASSERT_TRUE(WriteFileDurably(Path("secret"), "not of the model").ok());
  ASSERT_EQ(symlink(Path("secret").c_str(), Path("model/tokenizer_config.json").c_str()), 0);
  const auto begin = [&](Existing existing, std::optional<int64_t> goes_on_after) -> absl::Status {
    auto folder = RunFolder::Claim(Path("run"), existing);
    if (!folder.ok()) return folder.status();
    return (*folder)->Begin(
        {.job_text = "job two", .plan_text = "plan two", .goes_on_after = goes_on_after, .hf_folder = Path("model")});
  };
  EXPECT_THAT(std::string(begin(Existing::kReplace, std::nullopt).message()), HasSubstr("tokenizer_config.json"));
  EXPECT_EQ(Text(Path("run/job.textproto")), "job one");
  EXPECT_EQ(Text(Path("run/checkpoints/step-0000000001/MANIFEST")), "state one");
  // A folder with the name of a tokenizer file is ignored.
  unlink(Path("model/tokenizer_config.json").c_str());
  ASSERT_TRUE(WriteFileDurably(Path("model/tokenizer.json"), "tokens").ok());
  ASSERT_TRUE(MakeFolders(Path("model/tokenizer_old")).ok());
  ASSERT_TRUE(begin(Existing::kReplace, std::nullopt).ok());
  EXPECT_EQ(Text(Path("run/hf/tokenizer.json")), "tokens");
  EXPECT_EQ(Text(Path("run/hf/config.json")), "{}");
  EXPECT_FALSE(Exists(Path("run/.hf.tmp")));
  EXPECT_FALSE(Exists(Path("run/checkpoints/step-0000000001")));
  // A run keeps the files with which it began.
  ASSERT_TRUE(WriteFileDurably(Path("model/tokenizer.json"), "other tokens").ok());
  ASSERT_TRUE(begin(Existing::kContinue, 3).ok());
  EXPECT_EQ(Text(Path("run/hf/tokenizer.json")), "tokens");
}

TEST_F(RunFolderTest, AFolderThatIsNoRunIsNeverReplaced) {
  ASSERT_TRUE(MakeFolders(Path("photos")).ok());
  for (const char* name : {"1.jpg", "2.jpg", "3.jpg", "4.jpg", "5.jpg"}) {
    ASSERT_TRUE(WriteFileDurably(JoinPath(Path("photos"), name), "x").ok());
  }
  const absl::Status status = RunFolder::Claim(Path("photos"), Existing::kReplace).status();
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("is not empty (1.jpg, 2.jpg, 3.jpg, 4.jpg, ...) and holds no run"));
}

TEST_F(RunFolderTest, AClaimWithoutARunLeavesNoFolderBehind) {
  { ASSERT_TRUE(RunFolder::Claim(Path("new"), Existing::kRefuse).ok()); }
  EXPECT_FALSE(Exists(Path("new")));
  ASSERT_TRUE(MakeFolders(Path("mine")).ok());
  { ASSERT_TRUE(RunFolder::Claim(Path("mine"), Existing::kRefuse).ok()); }
  EXPECT_TRUE(Exists(Path("mine")));
}

// Regression: if a run was killed, or stopped by Ctrl-C, between Claim and Begin, its folder was taken for somebody
// else's, and a job that is started again whenever it ends never reached its first step.
TEST_F(RunFolderTest, WhatARunLeavesThatDiedBeforeItBeganIsInNobodysWay) {
  for (const Existing existing : {Existing::kRefuse, Existing::kReplace, Existing::kContinue}) {
    const std::string run = Path(absl::StrCat("run-", static_cast<int>(existing)));
    // The run was killed while it saved the checkpoint from which it resumed.
    const std::string unfinished = JoinPath(run, "checkpoints/.step-0000000300.tmp");
    ASSERT_TRUE(MakeFolders(unfinished).ok());
    ASSERT_TRUE(WriteFileDurably(JoinPath(unfinished, "shard-00000-of-00001"), "half").ok());
    ASSERT_TRUE(WriteFileDurably(JoinPath(run, ".metrics.jsonl.tmp-1-2"), "").ok());
    auto folder = RunFolder::Claim(run, existing);
    ASSERT_TRUE(folder.ok()) << folder.status();
    ASSERT_TRUE((*folder)->Begin({.job_text = "job", .plan_text = "plan"}).ok());
    EXPECT_FALSE(Exists(JoinPath(run, ".metrics.jsonl.tmp-1-2")));
  }
  ASSERT_TRUE(WriteFileDurably(Path("a.txt"), "x").ok());
  ASSERT_TRUE(MakeFolders(Path("checkpoints")).ok());
  EXPECT_EQ(RunFolder::Claim(root_, Existing::kContinue).status().code(), absl::StatusCode::kAlreadyExists);
}

// A checkpoint that was being replaced is state that somebody may want.
TEST_F(RunFolderTest, WhatMayHoldStateIsNoTrace) {
  ASSERT_TRUE(MakeFolders(Path("run/checkpoints/.step-0000000300.replaced")).ok());
  EXPECT_EQ(RunFolder::Claim(Path("run"), Existing::kRefuse).status().code(), absl::StatusCode::kAlreadyExists);
}

// The run saved its own checkpoint before Begin. The metrics and the tokenizer in the folder belong to the run before.
TEST_F(RunFolderTest, ARunThatGoesOnFromElsewhereKeepsNothingOfAnotherPast) {
  MakeRun(Path("run"));
  ASSERT_TRUE(MakeFolders(Path("run/hf")).ok());
  ASSERT_TRUE(WriteFileDurably(Path("run/hf/tokenizer.json"), "of the run before").ok());
  auto folder = RunFolder::Claim(Path("run"), Existing::kContinue);
  ASSERT_TRUE(folder.ok()) << folder.status();
  ASSERT_TRUE((*folder)
                  ->Begin({.job_text = "job two", .plan_text = "plan two", .goes_on_after = 1, .from_elsewhere = true})
                  .ok());
  EXPECT_EQ(Text(Path("run/metrics.jsonl")), "");
  EXPECT_FALSE(Exists(Path("run/hf")));
  EXPECT_EQ(Text(Path("run/checkpoints/step-0000000001/MANIFEST")), "state one");
}

TEST_F(RunFolderTest, TwoRunsNeverShareAFolder) {
  auto first = RunFolder::Claim(Path("run"), Existing::kRefuse);
  ASSERT_TRUE(first.ok());
  const absl::Status status = RunFolder::Claim(Path("run"), Existing::kRefuse).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("another run is writing to " + Path("run")));
  first->reset();
  EXPECT_TRUE(RunFolder::Claim(Path("run"), Existing::kRefuse).ok());
}

TEST_F(RunFolderTest, AFileInTheWayIsNamed) {
  ASSERT_TRUE(WriteFileDurably(Path("file"), "x").ok());
  EXPECT_EQ(RunFolder::Claim(Path("file/run"), Existing::kRefuse).status().message(),
            "cannot make folder " + Path("file") + ": Not a directory");
}

TEST_F(RunFolderTest, AFolderThatCannotBeWrittenIsRefusedBeforeTheRun) {
  ASSERT_TRUE(MakeFolders(Path("closed/run")).ok());
  chmod(Path("closed/run").c_str(), 0555);
  absl::Status status;
  {
    WithoutPrivileges plain;
    status = RunFolder::Claim(Path("closed/run"), Existing::kRefuse).status();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(status.message()), HasSubstr(Path("closed")));
  EXPECT_THAT(std::string(status.message()), HasSubstr("Permission denied"));
}

}  // namespace
}  // namespace shale
