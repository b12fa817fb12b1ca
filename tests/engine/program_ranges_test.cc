// What a profiler is told while a step runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/compile/program/issues.h"
#include "engine/run/runtime/profiler_ranges.h"
#include "tests/engine/job_harness.h"

namespace shale::testing {
namespace {

// Records each range when it begins, with those around it in its lane: "shale compute: micro-batch 0 > ...".
class Recorder : public ProfilerRanges {
 public:
  struct Thread {
    std::map<int, std::vector<std::string>> open;  // By lane.
    std::vector<std::string> ranges;
  };

  int Lane(const std::string& name) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = std::find(lanes_.begin(), lanes_.end(), name);
    if (found != lanes_.end()) return static_cast<int>(found - lanes_.begin());
    lanes_.push_back(name);
    return static_cast<int>(lanes_.size()) - 1;
  }
  Name Register(int lane, const std::string& name) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return &names_.emplace_back(name);
  }
  void Push(int lane, Name name, int64_t number) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    Thread& thread = threads_[std::this_thread::get_id()];
    const std::string& text = *static_cast<const std::string*>(name);
    const bool numbered = text == "step" || text == "micro-batch" || absl::StartsWith(text, "graph");
    thread.open[lane].push_back(numbered ? absl::StrCat(text, " ", number) : text);
    thread.ranges.push_back(absl::StrCat(lanes_[lane], ": ", absl::StrJoin(thread.open[lane], " > ")));
  }
  void Pop(int lane) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::string>& open = threads_[std::this_thread::get_id()].open[lane];
    ASSERT_FALSE(open.empty()) << lanes_[lane];
    open.pop_back();
  }

  std::vector<Thread> threads() const {
    std::vector<Thread> threads;
    for (const auto& [id, thread] : threads_) threads.push_back(thread);
    return threads;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lanes_;
  std::deque<std::string> names_;
  std::map<std::thread::id, Thread> threads_;
};

RunResult RunWith(ProfilerRanges& ranges, RunOptions options) {
  options.ranges = &ranges;
  options.step.micro_batches = 2;
  const int ranks = static_cast<int>(options.step.mesh.ranks());
  absl::StatusOr<RunResult> result = RunJob(options, RandomTokens(2 * ranks, 7, SmallDecoder().vocabulary, 1));
  EXPECT_TRUE(result.ok()) << result.status();
  return *std::move(result);
}

TEST(ProgramRanges, NameWhatEachRankEnqueues) {
  Recorder recorder;
  RunOptions options;
  options.steps = 2;
  options.step.mesh = {1, 2};
  const RunResult result = RunWith(recorder, options);
  ASSERT_EQ(recorder.threads().size(), 2);
  for (const Recorder::Thread& thread : recorder.threads()) {
    for (const auto& [lane, open] : thread.open) EXPECT_THAT(open, ::testing::IsEmpty());
    EXPECT_THAT(thread.ranges, ::testing::IsSupersetOf(
                                   {"shale: step 0", "shale: step 1", "shale compute: micro-batch 0",
                                    "shale compute: micro-batch 1 > forward blocks.1 > RmsNormForward",
                                    "shale compute: micro-batch 0 > backward blocks.0 > MatMul",
                                    "shale compute: update > AdamW", "shale gather: forward blocks.2 > AllGather"}));
    const auto count = [&](const std::string& text) {
      return std::count(thread.ranges.begin(), thread.ranges.end(), text);
    };
    // Each step has a range for each micro-batch, which goes on over the units, and each issue has one.
    EXPECT_EQ(count("shale compute: micro-batch 1"), 2);
    int64_t issues = 0;
    for (const std::string& range : thread.ranges) {
      const int64_t depth = std::count(range.begin(), range.end(), '>');
      issues += depth - (absl::StrContains(range, "micro-batch") ? 1 : 0) == 1;
    }
    EXPECT_EQ(issues, 2 * static_cast<int64_t>(CountIssues(result.step.program)));
  }
}

// As after a failure in the middle of a micro-batch.
TEST(ProgramRanges, TheEndOfARunEndsAllOfItsRanges) {
  Recorder recorder;
  const RunResult result = RunWith(recorder, RunOptions());
  const StepProgram& program = result.step.program;
  const auto in_micro_batch = std::find_if(program.instructions.begin(), program.instructions.end(),
                                           [](const Instruction& i) { return i.micro_batch >= 0; });
  const auto id = static_cast<InstructionId>(in_micro_batch - program.instructions.begin());
  ProgramRanges ranges(program, recorder);
  ranges.BeginRun();
  ranges.BeginIssue(id, 1);
  ranges.EndIssue(id);
  ranges.EndRun();
  for (const Recorder::Thread& thread : recorder.threads()) {
    for (const auto& [lane, open] : thread.open) EXPECT_THAT(open, ::testing::IsEmpty());
  }
}

}  // namespace
}  // namespace shale::testing
