#include "engine/cluster/processes/run_start.h"

#include <memory>
#include <string>
#include <vector>

#include "engine/api/job.h"
#include "engine/run/train/run_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/files/io/temp_folder.h"

namespace shale {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class Counter : public EventSink {
 public:
  void Take(const RunEvent&) override { ++events; }
  int events = 0;
};

std::vector<std::string> LinesOf(int64_t arena_bytes) {
  std::vector<std::string> lines;
  Counter counter;
  StartLines sink(counter, [&](absl::string_view line) { lines.emplace_back(line.data(), line.size()); });
  sink.Take({.what = PlanReady{.parameters = 7'615'616'512, .arena_bytes = arena_bytes}});
  for (const StartStage stage : {StartStage::kAllocating, StartStage::kLoading, StartStage::kFirstStep}) {
    sink.Take({.what = Progress{stage}});
  }
  sink.Take({.what = StepReport{}});
  EXPECT_EQ(counter.events, 5);
  return lines;
}

TEST(StartLines, OnlyLargeRunsSayWhatTheirStartIsDoing) {
  EXPECT_THAT(
      LinesOf(int64_t{126} << 30),
      ElementsAre("planned: 7,615,616,512 parameters, 126 GiB a rank",
                  "allocating memory, and trying what the run will use of libraries", "setting the initial weights"));
  EXPECT_THAT(LinesOf(StartLines::kLargeArenaBytes - 1), IsEmpty());
}

// A resumed run keeps what its search decided, and searches again if its step is divided in another way.
TEST(KeepDecisions, AResumedRunKeepsWhatWasSearched) {
  const TempFolder temp;
  const absl::StatusOr<std::unique_ptr<RunFolder>> folder =
      RunFolder::Claim(temp.Path("run"), RunFolder::Existing::kRefuse);
  ASSERT_TRUE(folder.ok()) << folder.status();
  const auto job_with = [](const std::vector<std::string>& overrides) {
    const absl::StatusOr<Job> job = ParseJobText(R"(
model { decoder { family: LLAMA width: 16 layers: 1 heads: 2 vocabulary: 256 } }
data { path: "/text" }
batch { global_batch: 16 sequence_length: 8 }
sharding { ranks: 2 accumulation: SHARDED }
lr_schedule { steps: 2 }
runtime { cpu_matmuls: ONEDNN })",
                                                 "job", overrides);
    EXPECT_TRUE(job.ok()) << job.status();
    return job.ok() ? *job : Job();
  };
  const std::string ran = ResolvedJobText(
      job_with({"batch.micro_batch=8", "activation_checkpointing.preset=CHEAP", "memory.loss_chunk_tokens=512"}));
  ASSERT_TRUE((*folder)->Begin({.job_text = ran, .plan_text = ""}).ok());
  const std::string search = R"(runtime.search=["batch.micro_batch", "activation_checkpointing.preset"])";
  const ResumeOptions resume = {.from = ResumeFrom::kLatestOrStart};

  Job job = job_with({search});
  const KeptDecisions kept = KeepDecisions(**folder, resume, job);
  EXPECT_EQ(kept.searched_job, ran);
  EXPECT_EQ(kept.line, "runtime.search: these fields are as in the run in " + (*folder)->path());
  EXPECT_EQ(job.batch.micro_batch, 8);
  EXPECT_EQ(job.activation_checkpointing.preset, CheckpointingPreset::kCheap);
  EXPECT_THAT(job.runtime.search, IsEmpty());

  Job other = job_with({search, "sharding.ranks=4", "precision.compute=BF16"});
  const Job before = other;
  const KeptDecisions again = KeepDecisions(**folder, resume, other);
  EXPECT_EQ(again.searched_job, "");
  EXPECT_THAT(again.line, ::testing::HasSubstr("searched again, because the job differs"));
  EXPECT_THAT(again.line, ::testing::EndsWith(" in sharding, precision"));
  EXPECT_EQ(other, before);

  // The job now clips by the norm of all gradients, which an update in backward cannot. It was once refused.
  const TempFolder changed;
  const auto in_backward = RunFolder::Claim(changed.Path("run"), RunFolder::Existing::kRefuse);
  ASSERT_TRUE(in_backward.ok()) << in_backward.status();
  const std::string update = "optimizer={update: IN_BACKWARD max_gradient_norm: 0 non_finite: SKIP}";
  ASSERT_TRUE((*in_backward)->Begin({.job_text = ResolvedJobText(job_with({update})), .plan_text = ""}).ok());
  Job clips = job_with({"runtime.search=[\"optimizer.update\"]"});
  EXPECT_THAT(KeepDecisions(**in_backward, resume, clips).line,
              ::testing::HasSubstr("the job rules out what the run "));
  EXPECT_EQ(clips.optimizer.update, UpdateTime::kAfterBackward);

  Job anew = job_with({search});
  EXPECT_EQ(KeepDecisions(**folder, {.from = ResumeFrom::kReplace}, anew).line, "");
  EXPECT_FALSE(anew.runtime.search.empty());
}

}  // namespace
}  // namespace shale
