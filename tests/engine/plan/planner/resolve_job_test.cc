#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/api/job.h"
#include "engine/api/plan.h"
#include "engine/files/data/data_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/plan/planner/planner_jobs.h"

namespace shale {
namespace {

using ::testing::HasSubstr;

Job MakeJob(const std::vector<std::string>& overrides = {}) {
  const absl::StatusOr<Job> job = ParseJobText(R"(
model { decoder { family: LLAMA width: 12 layers: 2 heads: 2 hidden: 20 } }
data { path: "/no/such/data" }
batch { global_batch: 8 micro_batch: 1 sequence_length: 7 }
sharding { ranks: 3 strategy: DDP }
lr_schedule { steps: 1 }
)",
                                               "job.textproto", overrides);
  EXPECT_TRUE(job.ok()) << job.status();
  return job.ok() ? *job : Job();
}

Machine MakeMachine(int64_t budget_bytes = kNoBudget) {
  Machine machine = MachineOf([=](int64_t) -> absl::StatusOr<Budget> { return Budget{.bytes = budget_bytes}; });
  machine.hardware_threads = 13;
  machine.cpu_matmuls = CpuMatMuls::kPacked;
  return machine;
}

TEST(ResolveJob, DecidesWhatTheJobLeavesOpen) {
  const absl::StatusOr<ResolvedJob> resolved =
      ResolveJob(MakeJob(), {.format = DataFormat::kText, .vocabulary = kTextVocabulary}, MakeMachine());
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  const Job& job = resolved->job;
  EXPECT_EQ(job.data.format, DataFormat::kText);
  EXPECT_EQ(Vocabulary(job.model), 256);
  EXPECT_EQ(job.memory.loss_chunk_tokens, 32768);
  EXPECT_EQ(job.sharding.accumulation, resolved->plan.options.accumulation);
  EXPECT_NE(job.sharding.accumulation, Accumulation::kAuto);
  EXPECT_EQ(job.runtime.threads_per_rank, 4);
  EXPECT_EQ(job.runtime.cpu_matmuls, CpuMatMuls::kPacked);
  EXPECT_THAT(ResolvedJobText(job), HasSubstr("cpu_matmuls: PACKED"));
}

TEST(ResolveJob, OneDnnComputesNoJobInFp16) {
  Machine machine = MakeMachine();
  machine.cpu_matmuls = CpuMatMuls::kOneDnn;
  for (const auto& [compute, chosen] : {std::pair("BF16", CpuMatMuls::kOneDnn), {"FP16", CpuMatMuls::kPacked}}) {
    const absl::StatusOr<ResolvedJob> resolved = ResolveJob(MakeJob({absl::StrCat("precision.compute=", compute)}),
                                                            {.format = DataFormat::kText, .vocabulary = 256}, machine);
    ASSERT_TRUE(resolved.ok()) << resolved.status();
    EXPECT_EQ(resolved->job.runtime.cpu_matmuls, chosen);
  }
}

TEST(ResolveJob, KeepsWhatTheJobNames) {
  const Job named =
      MakeJob({"data.format=LLMC", "model.decoder.vocabulary=300", "memory.loss_chunk_tokens=5",
               "sharding.accumulation=NO_SYNC", "runtime.threads_per_rank=2", "runtime.cpu_matmuls=ONEDNN"});
  const absl::StatusOr<ResolvedJob> resolved =
      ResolveJob(named, {.format = DataFormat::kLlmc, .vocabulary = 50257}, MakeMachine());
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(ResolvedJobText(resolved->job), ResolvedJobText(named));
}

// A resolved job is what a run records. When the record is resolved again, nothing is left to decide.
TEST(ResolveJob, AResolvedJobResolvesToItself) {
  const DataFacts data = {.format = DataFormat::kText, .vocabulary = kTextVocabulary};
  const absl::StatusOr<ResolvedJob> once = ResolveJob(MakeJob(), data, MakeMachine());
  ASSERT_TRUE(once.ok()) << once.status();
  const absl::StatusOr<ResolvedJob> twice = ResolveJob(once->job, data, MakeMachine());
  ASSERT_TRUE(twice.ok()) << twice.status();
  EXPECT_EQ(twice->job, once->job);
}

TEST(ResolveJob, RefusesAWrongJobBeforeItPlans) {
  Job job = MakeJob({"model.decoder.vocabulary=300"});
  job.batch.micro_batch = 0;
  Machine machine = MakeMachine();
  machine.create_ops = nullptr;  // A plan would need it.
  const absl::Status status = ResolveJob(job, {}, machine).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("batch.micro_batch"));
}

TEST(ResolveJob, RefusesAJobThatDoesNotFitUnlessItMayRunElsewhere) {
  const Job job = MakeJob({"model.decoder.vocabulary=300"});
  EXPECT_EQ(ResolveJob(job, {}, MakeMachine(1000)).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(ResolveJob(job, {}, MakeMachine(1000).WithoutBudget()).ok());
  std::string remark;
  std::optional<Refusal> refusal;
  const absl::StatusOr<ResolvedJob> elsewhere = ResolveJobForAnywhere(job, {}, MakeMachine(1000), remark, refusal);
  ASSERT_TRUE(elsewhere.ok() && !refusal) << elsewhere.status();
  EXPECT_THAT(remark, HasSubstr("This machine is too small for the job"));
  const absl::StatusOr<ResolvedJob> here = ResolveJob(job, {}, MakeMachine());
  ASSERT_TRUE(here.ok()) << here.status();
  EXPECT_EQ(elsewhere->job, here->job);
  EXPECT_EQ(elsewhere->plan.arena_bytes, here->plan.arena_bytes);
}

TEST(DataFactsForPlanning, ReadsTheDataOnlyIfTheJobDoesNotTell) {
  EXPECT_EQ(DataFactsForPlanning(MakeJob({"model.decoder.vocabulary=300"}))->vocabulary, 0);
  EXPECT_EQ(DataFactsForPlanning(MakeJob({"data.format=TEXT"}))->vocabulary, 256);
  // The program that runs such a job gives the data.
  EXPECT_EQ(DataFactsForPlanning(MakeJob({"data.path="})).status().message(),
            "data.path: missing, and the job leaves its vocabulary to its data; give it, or add --set "
            "model.decoder.vocabulary=N");
  const absl::Status missing = DataFactsForPlanning(MakeJob()).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(missing.message()),
              AllOf(HasSubstr("/no/such/data"), HasSubstr("add --set model.decoder.vocabulary=N")));
  const std::string text = absl::StrCat(::testing::TempDir(), "/resolve_job.", getpid(), ".txt");
  std::ofstream(text) << "some text";
  const absl::StatusOr<DataFacts> read = DataFactsForPlanning(MakeJob({"data.path=" + text}));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->format, DataFormat::kText);
  EXPECT_EQ(read->vocabulary, 256);
}

}  // namespace
}  // namespace shale
