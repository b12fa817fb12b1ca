// Where one of several processes fails, is slow or differs, all take the same decision, and say which one it was.
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/api/job.h"
#include "engine/api/plan.h"
#include "engine/api/trainer.h"
#include "engine/files/checkpoint/store.h"
#include "engine/files/io/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/plan/planner/measured.h"
#include "tests/engine/run/train/processes_fixture.h"

namespace shale::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

using ProcessFailuresTest = ProcessesTest;

TEST_F(ProcessFailuresTest, ProcessesWithDifferentJobsAreRefused) {
  const auto job = [&](int process) {
    return MakeJob({absl::StrCat("optimizer.learning_rate=", process == 2 ? "2e-2" : "1e-2")});
  };
  for (const Result& result : Run(MakeJob(), 3, "different", {.job = job})) {
    EXPECT_EQ(result.status.code(), absl::StatusCode::kFailedPrecondition) << result.status;
    EXPECT_THAT(std::string(result.status.message()), HasSubstr("processes disagree about the job: process 0 has"));
    EXPECT_THAT(std::string(result.status.message()), HasSubstr("process 2 has"));
  }
}

// Each process, which is a thread here, has a folder of its own to which the path of the data is relative.
TEST_F(ProcessFailuresTest, ProcessesThatReadOtherTokensAtTheSamePathAreRefused) {
  const std::string text = *ReadFile(Path("text"), 1 << 20);
  for (const char* folder : {"one", "other"}) {
    ASSERT_TRUE(MakeFolders(Path(folder)).ok());
    const std::string other(text.rbegin(), text.rend());
    ASSERT_TRUE(WriteFileDurably(JoinPath(Path(folder), "text"), folder == std::string("one") ? text : other).ok());
  }
  const auto run = [&](bool differs) {
    return Run(MakeJob(), 2, differs ? "differ" : "agree", {.job = [&](int process) {
                 EXPECT_EQ(unshare(CLONE_FS), 0);
                 EXPECT_EQ(chdir(Path(differs && process == 1 ? "other" : "one").c_str()), 0);
                 Job job = MakeJob();
                 job.data.path = "text";
                 return job;
               }});
  };
  for (const Result& result : run(/*differs=*/true)) {
    EXPECT_EQ(result.status.code(), absl::StatusCode::kFailedPrecondition) << result.status;
    EXPECT_THAT(std::string(result.status.message()),
                HasSubstr("processes disagree about the tokens of the data (their digests): process 0 has \"text ("));
  }
  for (const Result& result : run(/*differs=*/false)) EXPECT_TRUE(result.status.ok()) << result.status;
}

TEST_F(ProcessFailuresTest, AnErrorOfOneProcessAtTheStartIsTheErrorOfAll) {
  const auto job = [&](int process) {
    return MakeJob({process == 1 ? absl::StrCat("data.path=", Path("missing")) : "name=job"});
  };
  for (const Result& result : Run(MakeJob(), 2, "missing", {.job = job})) {
    EXPECT_EQ(result.status.code(), absl::StatusCode::kNotFound) << result.status;
    EXPECT_THAT(std::string(result.status.message()), HasSubstr("process 1: "));
    EXPECT_THAT(std::string(result.status.message()), HasSubstr("missing"));
  }
}

TEST_F(ProcessFailuresTest, AnErrorOfOneCallbackEndsTheRunOfAllWithASave) {
  const auto fail = [](int process, int64_t step) {
    return process == 1 && step == 2 ? absl::DataLossError("no place to write") : absl::OkStatus();
  };
  for (const Result& result : Run(MakeJob(), 3, "callback", {.result_of_step = fail})) {
    EXPECT_EQ(result.status.code(), absl::StatusCode::kDataLoss) << result.status;
    EXPECT_EQ(result.status.message(), "process 1: no place to write");
    EXPECT_TRUE(IsAgreed(result.status));
    EXPECT_EQ(result.losses.size(), 2);
    ASSERT_EQ(result.saved.size(), 1);
    EXPECT_THAT(result.saved[0], ::testing::StartsWith("2 "));
  }
}

TEST_F(ProcessFailuresTest, AStepThatIsNotFiniteIsTheSameDecisionOfAll) {
  const auto spoil = [](int process, int64_t step, Trainer& trainer) {
    if (process != 1 || step != 3) return;
    for (const Parameter& parameter : trainer.state().parameters()) {  // Writes the shards of this process.
      const std::vector<float> values(parameter.elements(), std::numeric_limits<float>::infinity());
      EXPECT_TRUE(trainer.state().WriteParameter(parameter.name, 0, values).ok()) << parameter.name;
    }
  };
  for (const Result& result : Run(MakeJob(), 3, "stop", {.on_step = spoil})) {
    EXPECT_EQ(result.status.code(), absl::StatusCode::kDataLoss) << result.status;
    EXPECT_THAT(std::string(result.status.message()),
                HasSubstr("step 4: the loss or the gradient is not finite in the sum over 5 ranks, to which any"));
    EXPECT_TRUE(IsAgreed(result.status));
    EXPECT_EQ(result.losses.size(), 3);
  }
  for (const Result& result : Run(MakeJob({"optimizer.non_finite=SKIP"}), 3, "skip", {.on_step = spoil})) {
    EXPECT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(result.losses.size(), 7);
  }
}

// Without the place of each collective the ranks would exchange wrong values as long as sizes agree, as the gathers and
// reductions of equal blocks do.
TEST_F(ProcessFailuresTest, ASkippedCollectiveIsNamedByAllAndReported) {
  struct Case {
    std::string stream;
    int number;
    std::string message;
  };
  const std::string others =
      ": ranks 0, 1, 2, 4 want [A-Za-z]+ of [0-9]+ [a-z0-9]+ for instruction [0-9]+ in iteration "
      "[0-9]+ of run [0-9]+; rank 3 wants [A-Za-z]+ of [0-9]+ [a-z0-9]+ for instruction ";
  for (const Case& c :
       {Case{"gather", 1, "disagree about collective 1" + others},
        Case{"gather", 4, "disagree about collective 4" + others},
        Case{"reduce", 2, "disagree about collective 2" + others},
        Case{"reduce", 28, "disagree about collective 28" + others},
        // Rank 3 then waits for the others in a gather, so nobody comes to the next reduction.
        Case{"reduce", 1, "for ranks? [0-9, ]*3(, 4)? in collective 1, AllReduceSum of 1 i64 for instruction 1 in "}}) {
    const std::string folder = absl::StrCat(c.stream, c.number);
    SCOPED_TRACE(folder);
    const Fault skip = {.group = absl::StrCat("shard of rank 0, ", c.stream), .rank = 3, .skipped = c.number};
    const double timeout_seconds = c.number == 1 && c.stream == "reduce" ? 5 : 60;
    const std::vector<Result> results = Run(MakeJob(), 2, folder, {.fault = skip, .timeout_seconds = timeout_seconds});
    for (size_t process = 0; process < results.size(); ++process) {
      EXPECT_THAT(std::string(results[process].status.message()), ::testing::ContainsRegex(c.message));
      const absl::StatusOr<std::string> report =
          ReadFile(Path(absl::StrCat(folder, "-failures/process-", process, ".jsonl")), 1 << 30);
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_THAT(*report, HasSubstr(absl::StrCat("{\"process\": ", process, ", ")));
      EXPECT_THAT(*report, HasSubstr(absl::StrCat("{\"rank\": ", process == 0 ? 0 : 3, ", ")));
      EXPECT_THAT(*report, HasSubstr("\"axis\": \"shard\""));
    }
  }
}

TEST_F(ProcessFailuresTest, WhoSkipsOrMistakesACollectiveIsAlwaysNamed) {
  for (const auto& [stream, last] : {std::pair("gather", 11), std::pair("reduce", 26)}) {
    for (int number = 2; number <= last; number += 3) {
      for (const bool mistaken : {false, true}) {
        const std::string folder = absl::StrCat(stream, number, mistaken);
        SCOPED_TRACE(folder);
        const Fault fault = {
            .group = absl::StrCat("shard of rank 0, ", stream), .rank = 3, .skipped = number, .mistaken = mistaken};
        const std::vector<Result> results = Run(MakeJob(), 2, folder, {.fault = fault, .timeout_seconds = 2});
        const bool made = mistaken && results[0].status.ok();  // It was an all-reduce anyway.
        for (const Result& result : results) {
          EXPECT_EQ(result.status.ok(), made) << result.status;
          if (made) continue;
          EXPECT_THAT(std::string(result.status.message()),
                      ::testing::ContainsRegex("rank 3 wants|waited [^;]* for ranks? [0-9, ]*3"));
        }
      }
    }
  }
}

// The update waits for a collective of all ranks, so that all hold the state from before a step in which one is lost.
TEST_F(ProcessFailuresTest, AReportSaysWhichStateTheProcessHeldAndWhichIsSaved) {
  for (const char* strategy : {"DDP accumulation: NO_SYNC", "ZERO1 accumulation: LAYERED", "FULL_SHARD"}) {
    SCOPED_TRACE(strategy);
    const std::string sharding = absl::StrCat("sharding={ranks: 5 strategy: ", strategy, "}");
    const Job job = MakeJob({sharding, "checkpoint.asynchronous=false"});
    int made = 0;  // Collectives of rank 3, which process 1 holds, in the group.
    const std::string folder = absl::StrCat("held ", strategy);
    Fault fault = {.group = "shard of rank 0, reduce", .rank = 3, .made = &made};
    const auto count = [&](int process, int64_t step, Trainer&) {
      if (process == 1 && step == 4) fault.skipped = made + 2;
    };
    for (const Result& result : Run(job, 2, "first" + folder, {.on_step = count, .fault = fault})) {
      ASSERT_TRUE(result.status.ok()) << result.status;
    }
    fault.made = nullptr;
    const std::vector<Result> results = Run(job, 2, folder, {.fault = fault, .timeout_seconds = 2});
    for (size_t process = 0; process < results.size(); ++process) {
      EXPECT_FALSE(results[process].status.ok());
      const absl::StatusOr<std::string> report =
          ReadFile(Path(absl::StrCat(folder, "-failures/process-", process, ".jsonl")), 1 << 30);
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_THAT(*report, HasSubstr("\"step\": 5, \"held\": 4, \"saved\": 3, "));
    }
  }
}

TEST_F(ProcessFailuresTest, CopiesOfTheStateStayEqualWhateverIsReplicated) {
  for (const char* sharding : {"sharding={ranks: 5 strategy: DDP}", "sharding={ranks: 5 strategy: ZERO1}",
                               "sharding={ranks: 5 strategy: ZERO2 accumulation: LAYERED}",
                               "sharding={ranks: 6 shard_ranks: 2}", "sharding={ranks: 5}"}) {
    SCOPED_TRACE(sharding);
    const Job job = MakeJob({sharding, "runtime.check_every_steps=2", "precision.compute=BF16"});
    for (const Result& result : Run(job, 3, absl::StrCat("equal", sharding + 10))) {
      EXPECT_TRUE(result.status.ok()) << result.status;
    }
  }
}

// Nothing else notices a wrong value on one rank: the job would go on with different models.
TEST_F(ProcessFailuresTest, RanksWhoseCopiesOfTheStateDifferAreNamed) {
  struct Case {
    const char* sharding;
    int processes;
    std::string differ;
    float value = 0.125f;
    int every_steps = 2;
  };
  // With a value that is not finite, the ranks compare before the loss, which it spoils everywhere, ends the job.
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  // Each process writes to all its ranks that hold the element. Of a shard, that is one rank of a row of the mesh.
  for (const Case& c :
       {Case{"sharding={ranks: 5 strategy: DDP}", 2, "ranks 0, 1 differ from ranks 2, 3, 4"},
        Case{"sharding={ranks: 5 strategy: DDP}", 2, "ranks 0, 1 differ from ranks 2, 3, 4", kInfinity, 50},
        Case{"sharding={ranks: 2 strategy: DDP}", 2, "rank 0 and rank 1 differ"},
        // Regression: after the update, the gather of the weights has written over the difference.
        Case{"sharding={ranks: 5 strategy: ZERO1}", 2, "ranks 0, 1 differ from ranks 2, 3, 4"},
        Case{"sharding={ranks: 5 strategy: ZERO2}", 2, "ranks 0, 1 differ from ranks 2, 3, 4"},
        Case{"sharding={ranks: 6 shard_ranks: 2}", 3, "rank 0 differs from ranks 2, 4"}}) {
    SCOPED_TRACE(c.sharding);
    const auto corrupt = [&](int process, int64_t step, Trainer& trainer) {
      if (process != 0 || step != 3) return;
      const std::vector<float> value = {c.value};
      EXPECT_TRUE(trainer.state().WriteParameter(trainer.state().parameters()[0].name, 0, value).ok());
    };
    const Job job =
        MakeJob({c.sharding, absl::StrCat("runtime.check_every_steps=", c.every_steps), "checkpoint.every_steps=1"});
    const std::string folder = absl::StrCat("differ", c.sharding, c.every_steps);
    for (const Result& result : Run(job, c.processes, folder, {.on_step = corrupt})) {
      EXPECT_EQ(result.status.code(), absl::StatusCode::kDataLoss) << result.status;
      EXPECT_TRUE(IsAgreed(result.status));
      EXPECT_THAT(std::string(result.status.message()),
                  HasSubstr(absl::StrCat(c.every_steps == 2 ? "before the update of step 4 " : "after step 4 ",
                                         c.differ, " in weights or optimizer state, of which they ")));
      EXPECT_EQ(result.losses.size(), 3);
      EXPECT_EQ(result.saved.size(), 3);  // The state after step 4 is not saved.
    }
  }
}

// Also where only process 0 knows how fast the machine is, and the slow rank is in the other one.
TEST_F(ProcessFailuresTest, ASlowRankIsNamed) {
  const Job job = MakeJob({"lr_schedule.steps=22", "checkpoint.every_steps=0", "telemetry.evaluate_every=0"});
  const absl::StatusOr<ResolvedJob> resolved =
      ResolveJob(job, *DataFactsForPlanning(job), CreateCpuBackend({})->machine().WithoutBudget());
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  proto::MachineProfile machine = MadeUpMachine(/*threads=*/1, /*per_second=*/1e12);
  *machine.mutable_works() = MeasuredFor({resolved->plan}).works();  // They take a few microseconds.
  std::vector<std::string> lines;                                    // What process 0 says after each step.
  const auto look = [&](int process, int64_t step, Trainer& trainer) {
    if (process == 0) {
      lines.push_back(trainer.devices().slow_ranks);
      lines.insert(lines.end(), trainer.warnings().begin(), trainer.warnings().end());
    } else {
      EXPECT_EQ(trainer.devices().slow_ranks, "") << step;
      EXPECT_THAT(trainer.warnings(), ::testing::IsEmpty()) << step;
    }
  };
#ifdef __SANITIZE_THREAD__
  constexpr double kDelay = 5e-2;  // Steps take several times as long, and how long differs more.
#else
  constexpr double kDelay = 1e-2;
#endif
  const Fault slow = {.group = "shard of rank 0, gather", .rank = 3, .delay_seconds = kDelay};
  for (const Result& result : Run(job, 2, "slow", {.on_step = look, .machine = &machine, .fault = slow})) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
  lines.erase(std::remove(lines.begin(), lines.end(), ""), lines.end());
  ASSERT_EQ(lines.size(), 2) << ::testing::PrintToString(lines);
  EXPECT_THAT(lines[0], HasSubstr("slow: rank 3 took more than 20 % longer than the median rank in each of 20 steps"));
  EXPECT_THAT(lines[1], HasSubstr("for 20 steps a step has taken more than "));
  // In a single step of a busy machine, another rank may have been the slowest.
  EXPECT_THAT(lines[1],
              ContainsRegex("; in the last one, on rank [0-4], which worked longest, .* took .* instead of "));
}

TEST_F(ProcessFailuresTest, EachRankIsHeldByOneProcess) {
  const auto refused = [&](const std::vector<std::vector<int>>& ranks, const std::string& message) {
    const auto mine = [&](int process) { return ranks[process]; };
    for (const Result& result : Run(MakeJob(), 2, "ranks", {.ranks = mine})) {
      EXPECT_EQ(result.status.code(), absl::StatusCode::kInvalidArgument) << result.status;
      EXPECT_EQ(result.status.message(), message);
    }
  };
  refused({{0, 1, 2}, {2, 3, 4}}, "process 1 holds rank 2 of 5, and so does process 0");
  refused({{0, 1, 2}, {4, 5}}, "process 1 holds rank 5 of 5");
  refused({{0, 1, 2}, {4}}, "no process holds rank 3 of 5");
  refused({{0, 1, 2, 3, 4}, {}}, "process 1 of 2 holds no rank of 5; start at most as many processes as ranks");
}

// Process 0 passes over a damaged checkpoint, and so do the others.
TEST_F(ProcessFailuresTest, ADamagedCheckpointIsPassedOverByAll) {
  const Job job = MakeJob();
  for (const Result& result : Run(job, 2, "run")) ASSERT_TRUE(result.status.ok()) << result.status;
  const std::string newest = JoinPath(Path("run"), CheckpointFolderName(6));
  const absl::StatusOr<std::vector<std::string>> names = ListFolder(newest);
  ASSERT_TRUE(names.ok());
  // The shard of the last rank, which process 1 reads.
  const std::string shard = JoinPath(newest, *std::max_element(names->begin(), names->end()));
  std::string bytes = *ReadFile(shard, 1 << 30);
  bytes[bytes.size() / 2] ^= 1;
  ASSERT_TRUE(WriteFileDurably(shard, bytes).ok());
  for (const Result& result : Run(job, 2, "run", {.resume = ResumeFrom::kLatest})) {
    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(result.losses.size(), 4);  // Steps 4 to 6 and the evaluation.
  }
}

}  // namespace
}  // namespace shale::testing
