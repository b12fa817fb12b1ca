// Tests what is printed about the bytes and the seconds of a step.
#include "engine/plan/report/step_report.h"

#include <numeric>
#include <string>

#include "engine/api/plan_text.h"
#include "engine/plan/planner/step_facts.h"
#include "engine/plan/planner/summary.h"
#include "engine/plan/time/profile.h"
#include "engine/strings/printing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/plan.pb.h"
#include "tests/engine/compile/memory/program_builder.h"
#include "tests/engine/plan/report/report_support.h"

namespace shale {
namespace {

using ::testing::HasSubstr;

proto::MachineProfile NamedProfile(const std::string& name) {
  const absl::StatusOr<proto::MachineProfile> profile = ReadProfile(name);
  EXPECT_TRUE(profile.ok()) << profile.status();
  return *profile;
}

TEST(MemoryReport, ShowsWhereEveryByteGoes) {
  testing::ProgramBuilder b;
  b.program().units = {"embedding", "blocks.0"};
  b.AddPersistent("blocks.0.m", 40 << 20);
  const BufferId kept = b.AddBuffer("blocks.0.out", 20 << 20, 2);
  const BufferId gathered = b.AddBuffer("blocks.0.gathered", 19 << 20);
  const BufferId later = b.AddBuffer("later", 1000);
  b.program().buffers[kept].category = BufferCategory::kActivations;
  b.program().buffers[gathered].category = BufferCategory::kGatheredParameters;
  b.Loop(2);
  b.Touch(StreamId::kGather, {}, {b.Bytes(gathered)});
  Instruction& peak = b.Touch(StreamId::kCompute, {b.Bytes(gathered)}, {b.Bytes(kept)});
  peak.unit = 1;
  peak.phase = Phase::kBackward;
  b.Touch(StreamId::kCompute, {}, {b.Bytes(later)});
  const StepProgram program = b.Finish();
  MemoryPlan plan = *PlanMemory(program, {});
  plan.peak_bytes = 100 << 20;  // As if the packing wasted 1 MiB.
  EXPECT_EQ(MemoryReport(program, plan), R"(peak 100 MiB (lower bound 99.0 MiB) per rank
  optimizer state         40.0 MiB   40.0 %
  gathered parameters     19.0 MiB   19.0 %
  activations kept        40.0 MiB   40.0 %
  between buffers          1.0 MiB    1.0 %
reached at instruction 1 (LayerNormForward, compute stream, unit blocks.0, backward), in every micro-batch
largest buffers then
   40.0 MiB  blocks.0.m         optimizer state
   40.0 MiB  blocks.0.out       activations kept, 2 slots of 20.0 MiB
   19.0 MiB  blocks.0.gathered  gathered parameters
)");
}

TEST(MemoryReport, OfAnEmptyProgramIsOneLine) {
  const StepProgram program = testing::ProgramBuilder().Finish();
  EXPECT_EQ(MemoryReport(program, *PlanMemory(program, {})), "peak 0 B (lower bound 0 B) per rank\n");
}

TEST(TimeReport, SecondsHaveThreeDigits) {
  EXPECT_EQ(FormatSeconds(1e300), "1e+300 s");
  EXPECT_EQ(FormatSeconds(1234.5), "1,235 s");
  EXPECT_EQ(FormatSeconds(1.934), "1.93 s");
  EXPECT_EQ(FormatSeconds(0.0123), "12.3 ms");
  EXPECT_EQ(FormatSeconds(4.5e-4), "450 us");
}

// Regression: MFU of matmuls in fp8 referred to the peak of bf16. They refer to their own peak, and the other matmuls
// and attention to that of bf16.
TEST(TimeReport, MfuRefersToThePeakOfWhatTheJobMultiplies) {
  proto::MachineProfile machine = NamedProfile("h100x8");
  const Job job = SmallFloat8Job();
  const JobPlan plan = Plan(job);
  const double all = ModelFlopsPerToken(job, plan.train.graph), float8 = Float8FlopsPerToken(plan.train.graph);
  ASSERT_TRUE(float8 > 0 && float8 < all);
  const auto expected = [&](const Prediction& p) {
    const double seconds = (all - float8) / machine.peak_flops_bf16() + float8 / machine.peak_flops_fp8();
    return p.tokens_per_second * seconds / static_cast<double>(job.sharding.ranks);
  };
  const Prediction p = PredictStep(job, plan, machine);
  EXPECT_DOUBLE_EQ(p.mfu, expected(p));
  // Without a peak of fp8, that of bf16 stands for it.
  machine.clear_peak_flops_fp8();
  const Prediction without = PredictStep(job, plan, machine);
  machine.set_peak_flops_fp8(machine.peak_flops_bf16());
  EXPECT_DOUBLE_EQ(without.mfu, expected(without));
}

// What a step waits for adds up to the step, of every job, and the message says the same as the text.
TEST(TimeReport, PartsAddUpToTheStep) {
  const proto::MachineProfile machine = NamedProfile("h100x8");
  for (const Job& job : VariedJobs()) {
    SCOPED_TRACE(job.name);
    JobPlan plan = Plan(job);
    const Prediction p = PredictStep(job, plan, machine);
    EXPECT_GT(p.step_seconds, 0);
    EXPECT_LE(p.low_seconds, p.step_seconds);
    EXPECT_LE(p.step_seconds, p.high_seconds);
    EXPECT_NEAR(std::accumulate(p.limits.begin(), p.limits.end(), 0.0), p.step_seconds, 1e-9 * p.step_seconds);
    EXPECT_NEAR(std::accumulate(p.known.begin(), p.known.end(), 0.0), 1, 1e-9);
    for (const double busy : p.busy_seconds) EXPECT_LE(busy, p.step_seconds * (1 + 1e-6));
    EXPECT_THAT(TimeText(p), HasSubstr(FormatSeconds(p.step_seconds)));
    EXPECT_THAT(PathText(p), HasSubstr(p.path.front().name));
    proto::Plan message;
    const Admission admission = Admitted({job, std::move(plan)});
    ASSERT_TRUE(message.ParseFromString(PlanMessage(admission, PlanDetail::kSummary, {.step = &p})));
    EXPECT_EQ(message.seconds().step(), p.step_seconds);
    EXPECT_EQ(message.seconds().path_size(), static_cast<int>(p.path.size()));
  }
}

// What a save and an evaluation take follows from the bytes, the disk and the programs, or is said to be unknown.
TEST(TimeReport, SavesAndEvaluationsTakeWhatTheirProgramsAndTheDiskTake) {
  proto::MachineProfile machine = NamedProfile("h100x8");
  Job job = SmallDecoderJob(false);
  job.runtime.device = DeviceType::kCuda;
  job.checkpoint.every_steps = 10;
  job.data.evaluation_path = "/nowhere";
  job.telemetry.evaluate_every = 20;
  job.telemetry.evaluation_sequences = 21;  // Three runs of 5 ranks x 2 sequences.
  for (const bool asynchronous : {true, false}) {
    job.checkpoint.asynchronous = asynchronous;
    machine.set_disk_bytes_per_second(0);
    const JobPlan plan = Plan(job);
    ASSERT_EQ(plan.snapshot.has_value(), asynchronous);
    const Prediction step = PredictStep(job, plan, machine);
    const PauseTimes unknown = PredictPauses(job, plan, machine);
    EXPECT_EQ(unknown.write_seconds, 0);
    EXPECT_THAT(Flat(PausesText(job, plan, unknown, step)),
                HasSubstr("is not known, because the profile has no speed"));
    machine.set_disk_bytes_per_second(1e3);
    const PauseTimes times = PredictPauses(job, plan, machine);
    const StepFacts facts = StepFactsOf(job, plan, machine);
    EXPECT_DOUBLE_EQ(times.evaluation_seconds, 3 * Predict(plan.evaluate.step.program, facts, machine).step_seconds);
    EXPECT_DOUBLE_EQ(times.write_seconds, 1e-3 * 5 * static_cast<double>(CheckpointBytes(job, plan)));
    EXPECT_EQ(times.save_seconds, asynchronous ? unknown.save_seconds : times.write_seconds);
    EXPECT_GT(times.save_seconds, 0);
    const std::string text = Flat(PausesText(job, plan, times, step));
    EXPECT_THAT(text, HasSubstr(absl::StrCat("evaluation every 20 steps and at the end: 21 sequences of each source ",
                                             "take ", FormatSeconds(times.evaluation_seconds))));
    EXPECT_THAT(text, HasSubstr("save every 10 steps and at the end: "));
    EXPECT_EQ(absl::StrContains(text, "longer than the steps until the next save"), asynchronous) << text;
  }
}

TEST(TimeReport, TheFactsOfAStepKnowItsProcesses) {
  const proto::MachineProfile machine = NamedProfile("h100x8");
  Job job = SmallDecoderJob(false);
  job.runtime.device = DeviceType::kCpu;
  const JobPlan plan = Plan(job);
  const int64_t ranks = plan.options.mesh.ranks();
  const auto processes = [&](const RankPlaces& places) { return StepFactsOf(job, plan, machine, places).processes; };
  ASSERT_GT(ranks, 1);
  EXPECT_EQ(processes({}), 1);
  EXPECT_EQ(processes({.processes = ranks}), ranks);
  EXPECT_EQ(processes({.hosts = ranks}), ranks) << "a process is on one host";
}

// One host has fast links, two share slower ones.
TEST(TimeReport, MoreHostsTakeLonger) {
  const proto::MachineProfile machine = NamedProfile("h100x8");
  const Job job = SmallDecoderJob(false);
  const JobPlan plan = Plan(job);
  ASSERT_GT(plan.options.mesh.ranks(), 1);
  EXPECT_GT(PredictStep(job, plan, machine, {.hosts = plan.options.mesh.ranks()}).step_seconds,
            PredictStep(job, plan, machine, {.hosts = 1}).step_seconds);
}

}  // namespace
}  // namespace shale
