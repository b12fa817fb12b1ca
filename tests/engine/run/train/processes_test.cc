// A job that runs in several processes is the same job: same losses, same samples, same checkpoints to the byte.
#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/api/data_source.h"
#include "engine/api/job.h"
#include "engine/api/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/machine.pb.h"
#include "tests/engine/run/train/processes_fixture.h"

namespace shale::testing {
namespace {

using ::testing::HasSubstr;

TEST_F(ProcessesTest, SeveralProcessesComputeAndSaveWhatOneDoes) {
  const std::pair<const char*, const char*> cases[] = {{"ranks: 5 strategy: FULL_SHARD accumulation: SHARDED", "FP32"},
                                                       {"ranks: 5 strategy: FULL_SHARD accumulation: NO_SYNC", "BF16"},
                                                       {"ranks: 5 strategy: FULL_SHARD accumulation: LAYERED", "FP32"},
                                                       {"ranks: 5 strategy: ZERO2 accumulation: SHARDED", "BF16"},
                                                       {"ranks: 5 strategy: ZERO2 accumulation: LAYERED", "FP32"},
                                                       {"ranks: 5 strategy: ZERO1 accumulation: NO_SYNC", "FP32"},
                                                       {"ranks: 5 strategy: ZERO1 accumulation: LAYERED", "BF16"},
                                                       {"ranks: 5 strategy: DDP accumulation: NO_SYNC", "BF16"},
                                                       {"ranks: 5 strategy: DDP accumulation: LAYERED", "FP32"},
                                                       {"ranks: 6 shard_ranks: 2 accumulation: SHARDED", "FP32"},
                                                       {"ranks: 6 shard_ranks: 3 accumulation: NO_SYNC", "FP32"},
                                                       {"ranks: 6 shard_ranks: 2 accumulation: LAYERED", "BF16"}};
  for (const auto& [sharding, compute] : cases) {
    SCOPED_TRACE(sharding);
    const Job job = MakeJob({absl::StrCat("sharding={", sharding, "}"), absl::StrCat("precision.compute=", compute)});
    const std::string one = absl::StrCat("one ", sharding), several = absl::StrCat("several ", sharding);
    const Result expected = Run(job, 1, one)[0];
    ASSERT_TRUE(expected.status.ok()) << expected.status;
    ASSERT_EQ(expected.losses.size(), 7);
    for (const Result& result : Run(job, 3, several)) {
      ASSERT_TRUE(result.status.ok()) << result.status;
      EXPECT_EQ(result.losses, expected.losses);
      EXPECT_EQ(result.saved, expected.saved);
      EXPECT_EQ(result.peak_bytes, expected.peak_bytes);
    }
    ExpectSameCheckpoint(one, several, 3);
    ExpectSameCheckpoint(one, several, 6);
  }
}

// Process 0 decides for all, and the run is then that of a job with these settings.
TEST_F(ProcessesTest, WhatASearchDecidesIsTheSameInAllProcesses) {
  const proto::MachineProfile machine = MadeUpMachine(/*threads=*/5, /*per_second=*/1e11);
  const Job job = MakeJob({"runtime.search=[\"batch.micro_batch\", \"sharding.strategy\"]"});
  std::string decided;
  const auto note = [&](int process, int64_t, Trainer& trainer) {
    if (process == 0) decided = ResolvedJobText(trainer.job());
    EXPECT_THAT(trainer.plan().searched, HasSubstr("batch.micro_batch=3"));
    EXPECT_TRUE(trainer.job().runtime.search.empty());
  };
  const std::vector<Result> searched = Run(job, 2, "searched", {.on_step = note, .machine = &machine});
  const absl::StatusOr<Job> named = ParseRecordedJob(decided, "job");
  ASSERT_TRUE(named.ok()) << named.status() << searched[0].status;
  EXPECT_EQ(named->batch.micro_batch, 3);
  const Result expected = Run(*named, 1, "named")[0];
  ASSERT_TRUE(expected.status.ok()) << expected.status;
  for (const Result& result : searched) {
    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(result.losses, expected.losses);
  }
  ExpectSameCheckpoint("named", "searched", 6);
  // Without a profile nothing can be searched, and no process waits for the others.
  for (const Result& result : Run(job, 2, "unknown")) {
    EXPECT_THAT(std::string(result.status.message()), HasSubstr("measure it once (calibrate)"));
  }
}

// Holds for asynchronous and for synchronous saves, and when the number of processes changes.
TEST_F(ProcessesTest, AStopOfOneProcessStopsAllAfterTheSameStepAndTheyResume) {
  for (const char* asynchronous : {"checkpoint.asynchronous=true", "checkpoint.asynchronous=false"}) {
    SCOPED_TRACE(asynchronous);
    const Job job = MakeJob({asynchronous});
    const std::string straight = absl::StrCat("straight", asynchronous),
                      stopped = absl::StrCat("stopped", asynchronous);
    ASSERT_TRUE(Run(job, 1, straight)[0].status.ok());
    const auto stop = [](int process, int64_t step, Trainer& trainer) {
      if (process == 1 && step == 4) trainer.RequestStop();
    };
    for (const Result& result : Run(job, 3, stopped, {.on_step = stop})) {
      ASSERT_TRUE(result.status.ok()) << result.status;
      // The others learn of it at the end of the next step.
      EXPECT_EQ(result.losses.size(), 5);
      EXPECT_EQ(result.saved.size(), 2);
    }
    for (const Result& result : Run(job, 2, stopped, {.resume = ResumeFrom::kLatest})) {
      ASSERT_TRUE(result.status.ok()) << result.status;
      EXPECT_EQ(result.losses.size(), 2);  // A step and the evaluation at the end.
    }
    ExpectSameCheckpoint(straight, stopped, 6);
  }
}

// Notes which samples are read.
class NotedSamples : public DataSource {
 public:
  NotedSamples() : DataSource({.name = "made up", .samples = 31, .sequence_length = 10, .vocabulary = 29}) {}
  absl::Status Read(int64_t number, const SampleParts& out) override {
    read.push_back(number);
    for (int64_t i = 0; i < 10; ++i) {
      out.inputs[i] = static_cast<int32_t>((7 * number + i) % 29);
      out.targets[i] = static_cast<int32_t>((7 * number + i + 1) % 29);
    }
    return absl::OkStatus();
  }
  std::vector<int64_t> read;
};

TEST_F(ProcessesTest, EachSampleIsReadByOneProcess) {
  const Job job = MakeJob({"data.path=", "data.evaluation_fraction="});
  const auto read = [&](int processes) {
    std::vector<NotedSamples> data(processes);
    const auto mine = [&](int process) { return &data[process]; };
    for (const Result& result : Run(job, processes, absl::StrCat("noted", processes), {.data = mine})) {
      EXPECT_TRUE(result.status.ok()) << result.status;
    }
    std::vector<int64_t> all;
    for (const NotedSamples& each : data) all.insert(all.end(), each.read.begin(), each.read.end());
    std::sort(all.begin(), all.end());
    return all;
  };
  const std::vector<int64_t> one = read(1);
  EXPECT_EQ(one.size(), 6 * 13);  // Steps, and the global batch.
  EXPECT_EQ(read(3), one);
}

TEST_F(ProcessesTest, WhatAllProcessesWriteIsWhatOneWrites) {
  const auto write = [](int, int64_t step, Trainer& trainer) {
    if (step != 2) return;
    for (const Parameter& parameter : trainer.state().parameters()) {
      // Begins and ends within shards.
      const int64_t begin = parameter.elements() / 3;
      std::vector<float> values(parameter.elements() / 2);
      for (size_t i = 0; i < values.size(); ++i) values[i] = 1e-3f * static_cast<float>(i % 50);
      EXPECT_TRUE(trainer.state().WriteParameter(parameter.name, begin, values).ok()) << parameter.name;
      for (const std::string& state : trainer.state().optimizer_states()) {
        EXPECT_TRUE(trainer.state().WriteOptimizerState(state, parameter.name, begin, values).ok()) << parameter.name;
      }
    }
  };
  for (const char* sharding :
       {"sharding={ranks: 5 strategy: FULL_SHARD accumulation: SHARDED}",
        "sharding={ranks: 5 strategy: ZERO1 accumulation: NO_SYNC}",
        "sharding={ranks: 5 strategy: DDP accumulation: LAYERED}", "sharding={ranks: 6 shard_ranks: 2}"}) {
    SCOPED_TRACE(sharding);
    const Job job = MakeJob({sharding, "precision.compute=BF16"});
    const std::string one = absl::StrCat("one", sharding + 20), several = absl::StrCat("several", sharding + 20);
    const Result expected = Run(job, 1, one, {.on_step = write})[0];
    ASSERT_TRUE(expected.status.ok()) << expected.status;
    EXPECT_NE(expected.losses, Run(job, 1, absl::StrCat("no ", one))[0].losses);
    for (const Result& result : Run(job, 3, several, {.on_step = write})) {
      ASSERT_TRUE(result.status.ok()) << result.status;
      EXPECT_EQ(result.losses, expected.losses);
    }
    ExpectSameCheckpoint(one, several, 3);
    ExpectSameCheckpoint(one, several, 6);
  }
}

TEST_F(ProcessesTest, ParametersOfOtherProcessesCannotBeRead) {
  const auto read = [](int process, int64_t step, Trainer& trainer) {
    if (step > 1) return;
    const Parameter& parameter = trainer.state().parameters()[0];
    std::vector<float> values(parameter.elements());
    const absl::Status status = trainer.state().ReadParameter(parameter.name, absl::MakeSpan(values));
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("ranks of other processes hold"));
  };
  for (const Result& result : Run(MakeJob(), 2, "read", {.on_step = read})) EXPECT_TRUE(result.status.ok());
}

// Each process holds one shard once and the other twice. A read must count each shard once.
TEST_F(ProcessesTest, AProcessWithAllShardsReadsParametersWhicheverReplicasItHolds) {
  std::mutex mutex;
  std::map<int, std::vector<float>> values;  // By process.
  const auto read = [&](int process, int64_t step, Trainer& trainer) {
    if (step > 1) return;
    const Parameter& parameter = trainer.state().parameters()[0];
    std::vector<float> mine(parameter.elements());
    const absl::Status status = trainer.state().ReadParameter(parameter.name, absl::MakeSpan(mine));
    EXPECT_TRUE(status.ok()) << status;
    const std::lock_guard<std::mutex> lock(mutex);
    values[process] = std::move(mine);
  };
  const Job job = MakeJob({"sharding={ranks: 6 shard_ranks: 2}"});
  for (const Result& result : Run(job, 2, "read", {.on_step = read})) EXPECT_TRUE(result.status.ok()) << result.status;
  ASSERT_EQ(values.size(), 2);
  EXPECT_EQ(values[0], values[1]);
}

TEST_F(ProcessesTest, AllGenerateFromTheWeightsThatTheyHoldTogether) {
  std::mutex mutex;
  std::map<int, std::vector<float>> logits;  // After the last step, by process.
  const auto generate = [&](int process, int64_t step, Trainer& trainer) {
    const absl::StatusOr<absl::Span<const float>> mine = trainer.generator().Logits({'t', 'h', 'e'});
    ASSERT_TRUE(mine.ok()) << mine.status();
    const std::lock_guard<std::mutex> lock(mutex);
    logits[process].assign(mine->begin(), mine->end());
  };
  const Job job = MakeJob({"runtime.generate=true", "lr_schedule.steps=2"});
  ASSERT_TRUE(Run(job, 1, "one", {.on_step = generate})[0].status.ok());
  const std::vector<float> expected = std::exchange(logits, {})[0];
  for (const Result& result : Run(job, 3, "several", {.on_step = generate})) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
  ASSERT_EQ(logits.size(), 3);
  for (const auto& [process, mine] : logits) EXPECT_EQ(mine, expected) << process;
}

}  // namespace
}  // namespace shale::testing
