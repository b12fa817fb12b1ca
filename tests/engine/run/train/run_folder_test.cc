#include "engine/run/train/run_folder.h"

#include <linux/capability.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/api/job.h"
#include "engine/files/checkpoint/store.h"
#include "engine/files/io/file.h"
#include "engine/plan/config/job_files.h"
#include "engine/text/tokenizer/tokenizer_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

using ::testing::HasSubstr;
using Existing = RunFolder::Existing;

// A tokenizer that transformers reads in another way for each class.
constexpr char kByteLevelTokenizer[] = R"({
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
  "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "<|endoftext|>": 2}, "merges": []}})";

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
                               absl::StrCat("{\"step\": 1}\n{\"step\": 2, \"loss\": 1.5}\nbroken\n{\"step\": 2}",
                                            std::string(3, '\0'), "\n{\"step\": 3}\n{\"st"))
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
// The class of a tokenizer stood in its folder's config.json, and run/hf has the config.json of the model, or none.
TEST_F(RunFolderTest, ATokenizerOfAnotherFolderKeepsItsClass) {
  ASSERT_TRUE(MakeFolders(Path("model")).ok());
  ASSERT_TRUE(MakeFolders(Path("tokenizer")).ok());
  ASSERT_TRUE(WriteFileDurably(Path("model/config.json"), R"({"model_type": "llama"})").ok());
  ASSERT_TRUE(WriteFileDurably(Path("tokenizer/tokenizer.json"), kByteLevelTokenizer).ok());
  for (const char* type : {"gpt2", "gpt_neox", "unknown", ""}) {
    ASSERT_TRUE(
        WriteFileDurably(Path("tokenizer/config.json"), absl::StrCat(R"({"model_type": ")", type, R"("})")).ok());
    for (const char* settings : {"", "{}", R"({"tokenizer_class": null, "pad_token": "b"})",
                                 R"({"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": false})"}) {
      unlink(Path("tokenizer/tokenizer_config.json").c_str());
      if (*settings != 0) {
        ASSERT_TRUE(WriteFileDurably(Path("tokenizer/tokenizer_config.json"), settings).ok());
      }
      const absl::StatusOr<FolderTokenizer> wanted = ReadFolderTokenizer(Path("tokenizer"));
      for (const char* model : {"", "model"}) {
        SCOPED_TRACE(absl::StrCat(type, " ", settings, " ", model));
        auto folder = RunFolder::Claim(Path("run"), Existing::kReplace);
        ASSERT_TRUE(folder.ok()) << folder.status();
        const absl::Status begun = (*folder)->Begin({.job_text = "job",
                                                     .plan_text = "plan",
                                                     .hf_folder = *model != 0 ? Path(model) : "",
                                                     .tokenizer_folder = Path("tokenizer")});
        ASSERT_TRUE(wanted.ok()) << wanted.status();
        ASSERT_TRUE(begun.ok()) << begun;
        const absl::StatusOr<FolderTokenizer> found = ReadFolderTokenizer(Path("run/hf"));
        ASSERT_TRUE(found.ok()) << found.status();
        EXPECT_EQ(found->tokenizer, wanted->tokenizer);
        EXPECT_EQ(found->special_tokens, wanted->special_tokens);
      }
    }
  }
}

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
  // It takes them again where a link stands in their place. The link led to other files, or to none.
  for (const char* other : {"job.textproto", "checkpoints"}) {
    std::filesystem::remove_all(Path("run/hf"));
    std::filesystem::create_symlink(other, Path("run/hf"));
    ASSERT_TRUE(begin(Existing::kContinue, 3).ok());
    EXPECT_EQ(Text(Path("run/hf/tokenizer.json")), "other tokens");
  }
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

// Regression: a run with the run folder "." and --overwrite wrote its record over the job that the user had there.
TEST_F(RunFolderTest, AJobThatSomebodyWroteIsNotReplaced) {
  const std::string job = Path("mine/job.textproto");
  ASSERT_TRUE(MakeFolders(Path("mine")).ok());
  ASSERT_TRUE(WriteFileDurably(job, "name: \"mine\"\n").ok());
  for (const Existing existing : {Existing::kReplace, Existing::kContinue}) {
    EXPECT_THAT(std::string(RunFolder::Claim(Path("mine"), existing).status().message()),
                HasSubstr("is not empty (job.textproto) and holds no run (no job.textproto that a run recorded)"));
  }
  // A run that was killed when it had recorded its job and nothing else is replaced.
  ASSERT_TRUE(WriteFileDurably(job, absl::StrCat(kResolvedJobHead, "name: \"mine\"\n")).ok());
  EXPECT_TRUE(RunFolder::Claim(Path("mine"), Existing::kReplace).ok());
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
            "telemetry.run_folder: cannot make folder " + Path("file") + ": Not a directory");
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

// Returns every path below `folder`, with what it holds.
std::map<std::string, std::string> Tree(const std::string& folder) {
  std::map<std::string, std::string> tree;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    tree[entry.path().string()] = entry.is_directory() ? "" : ReadFile(entry.path().string(), 1 << 20).value_or("?");
  }
  return tree;
}

// Starts two runs in a folder, one after the other. The second one meets what the first one has left.
void StartTwice(const std::string& run, Existing existing, const std::string& model) {
  for (int64_t step = 1; step <= 2; ++step) {
    auto folder = RunFolder::Claim(run, existing);
    if (!folder.ok()) continue;  // It sees no job, or no checkpoint.
    RunFolder::Start start = {.job_text = "job two", .plan_text = "plan two", .hf_folder = model};
    if (existing == Existing::kContinue) start.goes_on_after = step;
    EXPECT_TRUE((*folder)->NextFailurePath().ok());
    const absl::Status begun = (*folder)->Begin(start);
    EXPECT_TRUE(begun.ok()) << begun;
    EXPECT_TRUE((*folder)->AppendMetrics(JsonObject().Add("step", step + 1)).ok());
    EXPECT_TRUE((*folder)->NoteSaved(step).ok());
  }
}

// Regression: with runs/a/hf linked to a model's folder, --overwrite removed the model's files; so did the next run at
// failures/1, and a run that went on cut and appended to a linked metrics.jsonl.
TEST_F(RunFolderTest, NothingOutsideOfTheFolderIsRemovedOrWritten) {
  namespace fs = std::filesystem;
  using Names = std::vector<std::string>;
  const Names folders = {"hf",
                         ".hf.tmp",
                         "failures",
                         "checkpoints/step-0000000001",
                         "checkpoints/.step-0000000002.tmp",
                         "checkpoints/.step-0000000003.trash"};
  const Names deep = {"failures/1", "failures/2"};
  const Names files = {"job.textproto",
                       "plan.txt",
                       "metrics.jsonl",
                       "last_checkpoint",
                       ".probe",
                       ".metrics.jsonl.tmp-1-2",
                       "trace.process1",
                       "hf/config.json",
                       "failures/1/process-0.jsonl",
                       "checkpoints/step-0000000001/MANIFEST"};
  int runs = 0;
  const auto expect_untouched = [&](const Names& names, const auto& link) {
    for (const Existing existing : {Existing::kReplace, Existing::kContinue}) {
      SCOPED_TRACE(absl::StrCat(names[0], existing == Existing::kReplace ? ", replaced" : ", continued"));
      const std::string run = Path(absl::StrCat("run-", runs)), outside = Path(absl::StrCat("outside-", runs++));
      MakeRun(run);
      for (const std::string& folder : {run + "/hf", run + "/failures/1", run + "/checkpoints", outside + "/1"}) {
        ASSERT_TRUE(MakeFolders(folder).ok());
      }
      for (const char* file : {"config.json", "tokenizer.json", "1/process-0.jsonl"}) {
        ASSERT_TRUE(WriteFileDurably(JoinPath(outside, file), "{\"step\": 1}\n{\"step\": 2}\nprecious").ok());
      }
      const auto before = Tree(outside);
      for (const std::string& name : names) {
        fs::remove_all(JoinPath(run, name));
        link(outside, JoinPath(run, name));
      }
      StartTwice(run, existing, Path("model"));
      EXPECT_EQ(Tree(outside), before);
    }
  };
  ASSERT_TRUE(MakeFolders(Path("model")).ok());
  ASSERT_TRUE(WriteFileDurably(Path("model/config.json"), "{}").ok());
  for (const Names& names : {folders, deep}) {
    expect_untouched(names, [](const auto& outside, const auto& at) { fs::create_directory_symlink(outside, at); });
    expect_untouched(names, [](const auto& outside, const auto& at) { fs::create_symlink(outside + "/none", at); });
  }
  const std::string file = "/config.json";
  expect_untouched(files, [&](const auto& outside, const auto& at) { fs::create_symlink(outside + file, at); });
  expect_untouched(files, [&](const auto& outside, const auto& at) { fs::create_hard_link(outside + file, at); });
  expect_untouched(files, [&](const auto& outside, const auto& at) { fs::create_symlink(outside + "/new", at); });
}

TEST_F(RunFolderTest, TheFolderMayBeALinkAndItsCheckpointsMayNot) {
  MakeRun(Path("real"));
  std::filesystem::create_directory_symlink(Path("real"), Path("run"));
  {
    auto folder = RunFolder::Claim(Path("run"), Existing::kReplace);
    ASSERT_TRUE(folder.ok()) << folder.status();
    ASSERT_TRUE((*folder)->Begin({.job_text = "job two", .plan_text = "plan two"}).ok());
  }
  EXPECT_TRUE(IsLink(Path("run")));
  EXPECT_EQ(Text(Path("real/job.textproto")), "job two");
  ASSERT_TRUE(MakeFolders(Path("large disk")).ok());
  std::filesystem::remove_all(Path("real/checkpoints"));
  std::filesystem::create_directory_symlink(Path("large disk"), Path("real/checkpoints"));
  for (const Existing existing : {Existing::kReplace, Existing::kContinue}) {
    const absl::Status status = RunFolder::Claim(Path("real"), existing).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(status.message(), Path("real/checkpoints") +
                                    " is a link, and a run removes old checkpoints, but nothing outside of its "
                                    "folder: put a folder in its place, or make " +
                                    Path("real") + " itself the link");
  }
  EXPECT_TRUE(std::filesystem::is_empty(Path("large disk")));
  ASSERT_TRUE(MakeFolders(Path("locked")).ok());
  std::filesystem::create_symlink(Path("made by a lock"), Path("locked/.lock"));
  EXPECT_THAT(std::string(RunFolder::Claim(Path("locked"), Existing::kRefuse).status().message()),
              HasSubstr("/.lock is a link"));
  EXPECT_FALSE(Exists(Path("made by a lock")));
}

// Regression: --resume=auto began anew, without a word, in the folder of a run whose checkpoints lay on a volume that
// was not mounted, and wrote over the history of that run.
TEST_F(RunFolderTest, ARunWhoseCheckpointsAreNotThereIsNotStartedOver) {
  const auto claim = [&] { return RunFolder::Claim(Path("run"), Existing::kContinue); };
  MakeRun(Path("run"));
  ASSERT_TRUE(RemoveFolderAndFiles(Path("run/checkpoints/step-0000000001")).ok());
  // It was killed before its first checkpoint.
  {
    const auto folder = claim();
    ASSERT_TRUE(folder.ok()) << folder.status();
    EXPECT_EQ((*folder)->former_step(), 1);
    ASSERT_TRUE((*folder)->NoteSaved(1).ok());
  }
  const auto expect_refused = [&] {
    const absl::Status status = claim().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr(" and saved checkpoints, but there is none in " +
                                                         Path("run/checkpoints") + ": mount or move them there"));
    EXPECT_THAT(Text(Path("run/metrics.jsonl")), HasSubstr("{\"step\": 1}"));
  };
  expect_refused();
  // A checkpoint that is half written or removed is none. One that another one was replacing is.
  ASSERT_TRUE(MakeFolders(Path("run/checkpoints/.step-0000000001.tmp")).ok());
  expect_refused();
  ASSERT_TRUE(MakeFolders(Path("run/checkpoints/.step-0000000001.replaced")).ok());
  EXPECT_TRUE(claim().ok());
  std::filesystem::remove_all(Path("run/checkpoints"));
  expect_refused();
  EXPECT_TRUE(RunFolder::Claim(Path("run"), Existing::kReplace).ok());
}

}  // namespace
}  // namespace shale
