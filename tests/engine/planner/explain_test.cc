#include "engine/planner/explain.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/memory/report.h"
#include "engine/planner/text.h"
#include "gtest/gtest.h"
#include "kernels/integers.h"
#include "tests/engine/planner/planner_jobs.h"

namespace shale {
namespace {

JobPlan Plan(const Job& job) {
  absl::StatusOr<JobPlan> plan = PlanJob(job, MachineOf());
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

std::string Explain(const Job& job) {
  absl::StatusOr<std::string> text = ExplainText(job, Plan(job), ScratchOnlyOps());
  EXPECT_TRUE(text.ok()) << text.status();
  return *std::move(text);
}

// Returns the text with single spaces, so that line breaks do not matter.
std::string Flat(const std::string& text) {
  std::string flat;
  for (absl::string_view word : absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty())) {
    absl::StrAppend(&flat, flat.empty() ? "" : " ", word);
  }
  return flat;
}

// Returns the table row that starts with `name`, after `title`.
std::string Row(const std::string& text, absl::string_view title, absl::string_view name) {
  bool found = false;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    found |= absl::StartsWith(line, title);
    if (found && absl::StartsWith(line, absl::StrCat("  ", name, " "))) return Flat(std::string(line));
  }
  return "";
}

Job Named(Accumulation accumulation) {
  Job job = SmallDecoderJob(false);
  job.sharding.accumulation = accumulation;
  return job;
}

TEST(Explain, MicroBatchesAddNothingUnlessLayered) {
  for (Accumulation accumulation : {Accumulation::kSharded, Accumulation::kNoSync}) {
    EXPECT_TRUE(absl::StrContains(Flat(Explain(Named(accumulation))), "accumulating adds nothing"));
  }
  Job job = Named(Accumulation::kLayered);
  const int64_t four = Plan(job).arena_bytes;
  const std::string text = Flat(Explain(job));
  job.batch.global_batch = 10;
  const int64_t one = Plan(job).arena_bytes;
  EXPECT_TRUE(absl::StrContains(
      text, absl::StrCat("With K = 4 micro-batches a step one rank needs ", FormatBytes(four), ", with one ",
                         FormatBytes(one), ": accumulating adds ", FormatBytes(four - one))))
      << text;
}

TEST(Explain, PresetsShowWhatTheirOwnPlansNeed) {
  Job job = Named(Accumulation::kSharded);
  const std::string text = Explain(job);
  const int64_t keep_all = Plan(job).arena_bytes;
  for (CheckpointingPreset preset :
       {CheckpointingPreset::kCheap, CheckpointingPreset::kAttention, CheckpointingPreset::kFeedForward,
        CheckpointingPreset::kSublayers, CheckpointingPreset::kBlock}) {
    job.activation_checkpointing.preset = preset;
    const JobPlan plan = Plan(job);
    const FlopsSummary flops = SummarizeFlops(plan.train.step.program);
    const std::string saved =
        plan.arena_bytes == keep_all ? "the same" : absl::StrCat("saves ", FormatBytes(keep_all - plan.arena_bytes));
    EXPECT_EQ(Row(text, "What each preset", std::string(ToString(preset))),
              absl::StrCat(ToString(preset), " ", FormatBytes(plan.arena_bytes), " ", saved, " ",
                           FormatFlops(flops.recompute), " (", Percent(flops.recompute, flops.forward + flops.backward),
                           ")"));
  }
}

TEST(Explain, OffloadShowsWhatItsOwnPlansNeedWhereItSaves) {
  Job job = Named(Accumulation::kLayered);
  EXPECT_FALSE(absl::StrContains(Explain(job), "memory.offload"));
  job.runtime.device = DeviceType::kCuda;
  const std::string text = Explain(job);
  const int64_t own = Plan(job).arena_bytes;
  job.memory.offload = {"*"};
  for (CheckpointingPreset preset : {CheckpointingPreset::kNone, CheckpointingPreset::kBlock}) {
    job.activation_checkpointing.preset = preset;
    const JobPlan plan = Plan(job);
    EXPECT_EQ(Row(text, "What memory.offload", std::string(ToString(preset))),
              absl::StrCat(ToString(preset), " ", FormatBytes(plan.arena_bytes), " saves ",
                           FormatBytes(own - plan.arena_bytes), " ", FormatBytes(plan.train.memory.host_bytes), " ",
                           FormatBytes(SummarizeOffload(plan.train.step.program).offloaded_bytes)));
  }
}

TEST(Explain, NoSyncHoldsTheGradientsOfTheWholeModel) {
  Job job = Named(Accumulation::kSharded);
  const JobPlan own = Plan(job);
  const std::string text = Explain(job);
  // The parameters have 12 columns: three blocks, embedding and head of 50 rows each, and the final norm.
  const int64_t block = 12 * 24 + 12 * 12 + 12 * 40 + 20 * 12 + 2 * 12, parameters = 3 * block + 2 * 50 * 12 + 12;
  EXPECT_TRUE(absl::StrContains(
      Flat(text),
      absl::StrCat("all ", WithCommas(parameters), " parameters in fp32 on every rank, ", FormatBytes(4 * parameters))))
      << text;
  const JobPlan deferred = Plan(Named(Accumulation::kNoSync));
  EXPECT_EQ(Row(text, "What accumulating", "NO_SYNC"),
            absl::StrCat("NO_SYNC ", FormatBytes(deferred.arena_bytes), " adds ",
                         FormatBytes(deferred.arena_bytes - own.arena_bytes), " ",
                         FormatBytes(SummarizeCommunication(deferred.train.step.program, {.shard = 5}).sent_bytes)));
}

TEST(Explain, NoSyncOfGradientsIsStrategyOptimizer) {
  Job job = Named(Accumulation::kSharded);
  job.sharding.strategy = Strategy::kZero2;
  const std::string text = Explain(job);
  job.sharding.strategy = Strategy::kZero1;
  job.sharding.accumulation = Accumulation::kNoSync;
  EXPECT_TRUE(absl::StrContains(Row(text, "What accumulating", "NO_SYNC with strategy ZERO1"),
                                FormatBytes(Plan(job).arena_bytes)))
      << text;
}

TEST(Explain, TheOptimizerStepAddsNothing) {
  EXPECT_TRUE(absl::StrContains(Flat(Explain(Named(Accumulation::kSharded))), "It adds nothing"));
}

TEST(Explain, CategoriesAddUpToThePeak) {
  const Job job = Named(Accumulation::kSharded);
  const JobPlan plan = Plan(job);
  const std::string text = Explain(job);
  for (int c = 0; c < kBufferCategories; ++c) {
    const int64_t bytes = plan.train.memory.bytes_at_peak[c];
    const std::string row = Row(text, "Where every byte goes", ToString(static_cast<BufferCategory>(c)));
    EXPECT_EQ(row.empty(), bytes == 0) << row;
    EXPECT_TRUE(bytes == 0 || absl::StrContains(row, FormatBytes(bytes))) << row;
  }
}

TEST(Explain, OneRankHasNobodyToSynchronizeWith) {
  Job job = SmallMlpJob();
  job.sharding.ranks = 1;
  EXPECT_TRUE(absl::StrContains(Explain(job), "Nothing: there is one rank."));
}

TEST(PlanText, NamesWhatWasDecided) {
  const Job job = SmallDecoderJob(false);
  const JobPlan plan = Plan(job);
  const std::string text = Flat(PlanText(job, plan));
  for (const std::string& part :
       {std::string("Plan of small"),
        absl::StrCat("accumulation ", ToString(plan.options.accumulation), ": ", plan.accumulation_reason),
        std::string("40 sequences of 7 tokens a step: 5 ranks x 4 micro-batches x 2 sequences"),
        absl::StrCat(WithCommas(plan.arena_bytes), " bytes"), std::string("memory")}) {
    EXPECT_TRUE(absl::StrContains(text, part)) << part << " in\n" << text;
  }
}

TEST(PlanText, SaysWhatARankHasBesideItsArena) {
  const Job job = SmallDecoderJob(false);
  const JobPlan plan = Plan(job);
  const HostMemoryPlan& host = plan.host_memory;
  const std::string wanted =
      absl::StrCat("beside its arena a rank has ", FormatBytes(host.total_bytes()), " (",
                   WithCommas(host.total_bytes()), " bytes): 12.0 MiB of staging for checkpoints");
  EXPECT_TRUE(absl::StrContains(Flat(PlanText(job, plan)), wanted)) << PlanText(job, plan);
}

TEST(PlanText, SaysWhatIsOffloaded) {
  Job job = SmallDecoderJob(false);
  EXPECT_FALSE(absl::StrContains(PlanText(job, Plan(job)), "offload"));
  job.memory.offload = {"*.ffn.gate_up", "*.out"};
  job.runtime.device = DeviceType::kCuda;
  job.sharding.accumulation = Accumulation::kLayered;
  JobPlan plan = Plan(job);
  // Three blocks, each with its input, the output of attention and gate_up, for four micro-batches of 2 x 7 tokens, in
  // fp32.
  const int64_t bytes = 4 * 3 * (2 * 7 * (12 + 12 + 2 * 20) * 4);
  EXPECT_GE(plan.host_memory.offload_bytes, bytes);
  EXPECT_EQ(plan.host_memory.offload_bytes, RoundUp(plan.train.memory.host_bytes, 4096));
  std::string text = Flat(PlanText(job, plan));
  EXPECT_TRUE(absl::StrContains(
      text, absl::StrCat("offload 9 tensors of a micro-batch (*.ffn.gate_up, *.out); a step moves ", FormatBytes(bytes),
                         " of one rank to host memory and ", FormatBytes(bytes), " back")))
      << text;
  EXPECT_TRUE(absl::StrContains(
      text, absl::StrCat(", ", FormatBytes(plan.host_memory.offload_bytes), " for what is offloaded")))
      << text;
  job.memory.offload = {"*.ffn.gate_up", "*logits"};
  text = Flat(PlanText(job, Plan(job)));
  EXPECT_TRUE(absl::StrContains(text, " back; nothing for *logits")) << text;
  job.memory.offload = {"*logits"};
  plan = Plan(job);
  text = Flat(PlanText(job, plan));
  EXPECT_TRUE(absl::StrContains(text, "offload nothing: no tensor named *logits is kept for backward")) << text;
  EXPECT_FALSE(absl::StrContains(text, "for what is offloaded")) << text;
}

// Reading the folder takes a second staging buffer, which the plan once left out.
TEST(PlanText, SaysWhatReadingAFolderTakes) {
  Job job = SmallDecoderJob(false);
  EXPECT_FALSE(absl::StrContains(Flat(PlanText(job, Plan(job))), "hf_folder"));
  job.hf_folder = "/nowhere";
  EXPECT_TRUE(absl::StrContains(Flat(PlanText(job, Plan(job))), "2.0 MiB more while it reads model.hf_folder"))
      << PlanText(job, Plan(job));
}

TEST(PlanText, CountsMaskedSequences) {
  Job job = SmallDecoderJob(false);
  job.batch.global_batch = 33;
  EXPECT_TRUE(absl::StrContains(Flat(PlanText(job, Plan(job))), "of which 7 are masked"));
}

TEST(Text, NumbersAsPeopleReadThem) {
  EXPECT_EQ(WithCommas(0), "0");
  EXPECT_EQ(WithCommas(999), "999");
  EXPECT_EQ(WithCommas(1234567), "1,234,567");
  EXPECT_EQ(WithCommas(-123456), "-123,456");
  EXPECT_EQ(FormatFlops(0), "0 FLOP");
  EXPECT_EQ(FormatFlops(999.4), "999 FLOP");
  EXPECT_EQ(FormatFlops(1e3), "1.00 kFLOP");
  EXPECT_EQ(FormatFlops(45.67e12), "45.7 TFLOP");
  EXPECT_EQ(FormatFlops(999.7e12), "1.00 PFLOP");
  EXPECT_EQ(Percent(1, 8), "12.5 %");
  EXPECT_EQ(Percent(1, 0), "0 %");
  EXPECT_EQ(Plural(1, "batch"), "1 batch");
  EXPECT_EQ(Plural(2000, "batch"), "2,000 batches");
  EXPECT_EQ(Plural(2, "rank"), "2 ranks");
  EXPECT_EQ(Paragraph("one two  three", 7), "one two\nthree\n");
  EXPECT_EQ(Table({{"a", "1", "x"}, {"bb", "22"}}), "  a    1  x\n  bb  22\n");
}

}  // namespace
}  // namespace shale
