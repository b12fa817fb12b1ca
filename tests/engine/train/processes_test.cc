// A job that runs in several processes is the same job: same losses, same checkpoints to the byte, and one decision
// where the processes have to decide. The processes are threads of the test. They share nothing but their control
// plane, the folder of checkpoints, and groups whose communicators they divide among themselves.
#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/checkpoint/store.h"
#include "engine/config/parse.h"
#include "engine/data/data_source.h"
#include "engine/io/file.h"
#include "engine/runtime/cpu_backend.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/check.h"
#include "sharding/comm/in_process.h"
#include "tests/engine/io/temp_folder.h"
#include "tests/sharding/comm/thread_processes.h"

namespace shale::testing {
namespace {

using ::testing::HasSubstr;

// The groups of a job, by name. The first process that asks for a group creates it, and each takes its own members.
class Groups {
 public:
  explicit Groups(double timeout_seconds) : timeout_seconds_(timeout_seconds) {}
  absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> Take(const GroupMembers& members) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::unique_ptr<Communicator>>& group = groups_[members.name];
    if (group.empty()) {
      SHALE_ASSIGN_OR_RETURN(group, CreateInProcessGroup(members.size, {.timeout_seconds = timeout_seconds_}));
    }
    std::vector<std::unique_ptr<Communicator>> mine;
    for (int place : members.places) mine.push_back(std::move(group[place]));
    return mine;
  }

 private:
  const double timeout_seconds_;
  std::mutex mutex_;
  std::map<std::string, std::vector<std::unique_ptr<Communicator>>> groups_;  // mutex_ guards it.
};

// What is wrong with a rank's member of the group with this name.
struct Fault {
  std::string group;
  int rank = 0;
  int skipped = 0;           // The collective that it leaves out, from 1, as a bug might do. 0: none.
  bool mistaken = false;     // It does not leave that out, but makes an all-reduce instead.
  double delay_seconds = 0;  // How late it comes to each collective.
  int* made = nullptr;       // Gets the number of collectives that it has come to, if not null.
};

class FaultyCommunicator : public Communicator {
 public:
  FaultyCommunicator(std::unique_ptr<Communicator> wrapped, const Fault& fault)
      : wrapped_(std::move(wrapped)), fault_(fault) {}
  int rank() const override { return wrapped_->rank(); }
  int size() const override { return wrapped_->size(); }
  void SetPlace(const CollectivePlace& place) override { wrapped_->SetPlace(place); }
  void Abort(absl::Status reason) override { wrapped_->Abort(std::move(reason)); }

 protected:
  absl::Status EnqueueAllGather(const Tensor& shard, const Tensor& full, Stream& stream) override {
    return Errs() ? Err(full, stream) : wrapped_->AllGather(shard, full, stream);
  }
  absl::Status EnqueueReduceScatterSum(const Tensor& full, const Tensor& shard, Stream& stream) override {
    return Errs() ? Err(full, stream) : wrapped_->ReduceScatterSum(full, shard, stream);
  }
  absl::Status EnqueueAllReduceSum(const Tensor& data, Stream& stream) override {
    return Errs() && !fault_.mistaken ? absl::OkStatus() : wrapped_->AllReduceSum(data, stream);
  }

 private:
  // Is called in the rank's launching thread, so a delay makes all streams of the rank late.
  bool Errs() {
    std::this_thread::sleep_for(std::chrono::duration<double>(fault_.delay_seconds));
    ++number_;
    if (fault_.made != nullptr) *fault_.made = number_;
    return number_ == fault_.skipped;
  }
  absl::Status Err(const Tensor& full, Stream& stream) {
    return fault_.mistaken ? wrapped_->AllReduceSum(full, stream) : absl::OkStatus();
  }

  const std::unique_ptr<Communicator> wrapped_;
  const Fault fault_;
  int number_ = 0;
};

// The CPU backend of one process, whose groups may span processes.
class SpanningBackend : public Backend {
 public:
  explicit SpanningBackend(Groups& groups, Fault fault)
      : groups_(groups), fault_(std::move(fault)), cpu_(CreateCpuBackend({})) {}
  std::unique_ptr<Ops> CreateOps(int64_t ranks, const Device* device) const override {
    return cpu_->CreateOps(ranks, device);
  }
  absl::StatusOr<std::vector<std::shared_ptr<Device>>> CreateDevices(int ranks, bool synchronous) const override {
    return cpu_->CreateDevices(ranks, synchronous);
  }
  absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateGroup(const GroupMembers& group) const override {
    SHALE_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<Communicator>> mine, groups_.Take(group));
    for (size_t i = 0; i < mine.size(); ++i) {
      if (group.name != fault_.group || group.places[i] != fault_.rank) continue;
      mine[i] = std::make_unique<FaultyCommunicator>(std::move(mine[i]), fault_);
    }
    return mine;
  }
  absl::StatusOr<Budget> DefaultBudget(int64_t ranks) const override { return cpu_->DefaultBudget(ranks); }

 private:
  Groups& groups_;
  const Fault fault_;
  const std::unique_ptr<Backend> cpu_;
};

struct Result {
  absl::Status status;
  std::vector<double> losses;      // Of steps and evaluations, in order.
  std::vector<std::string> saved;  // Step and bytes of every checkpoint.
  int64_t peak_bytes = 0;
};
struct RunOptions {
  ResumeFrom resume = ResumeFrom::kNothing;
  std::function<void(int process, int64_t step, Trainer& trainer)> on_step;
  std::function<Job(int process)> job;                                    // Of a process, if they differ.
  std::function<absl::Status(int process, int64_t step)> result_of_step;  // What a process's callback returns.
  std::function<std::vector<int>(int process)> ranks;                     // Of a process, if not an equal part.
  std::function<DataSource*(int process)> data;                           // Of a process, if not the job's file.
  Fault fault;
  double timeout_seconds = 60;  // Of collectives.
};

class ProcessesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string text;
    for (int i = 0; i < 40; ++i) absl::StrAppend(&text, "the ", i * i % 97, " quick brown foxes jump over the dog.\n");
    temp_.Write("text", text);
  }
  std::string Path(absl::string_view name) const { return temp_.Path(name); }

  // Five ranks, which no number of processes divides, and a global batch that nothing divides.
  Job MakeJob(const std::vector<std::string>& overrides = {}) const {
    const absl::StatusOr<Job> job = ParseJobText(absl::StrCat(R"(
model { decoder { family: GPT2 width: 24 layers: 2 heads: 2 hidden: 40 } }
batch { global_batch: 13 micro_batch: 1 sequence_length: 10 }
sharding { ranks: 5 }
optimizer { learning_rate: 1e-2 }
lr_schedule { steps: 6 warmup_steps: 2 }
checkpoint { every_steps: 3 keep_last: 9 }
runtime { threads_per_rank: 1 }
data { evaluation_fraction: 0.2 path: ")",
                                                              Path("text"), "\" }\n"),
                                                 "job.textproto", overrides);
    EXPECT_TRUE(job.ok()) << job.status();
    return job.ok() ? *job : Job();
  }

  // Runs a job in so many processes. Returns the result of each.
  std::vector<Result> Run(const Job& job, int processes, const std::string& folder, const RunOptions& options = {}) {
    ThreadProcesses control(processes);
    Groups groups(options.timeout_seconds);
    std::vector<Result> results(processes);
    std::vector<std::thread> threads;
    for (int process = 0; process < processes; ++process) {
      threads.emplace_back([&, process] {
        const Job mine = options.job ? options.job(process) : job;
        results[process] = RunProcess(mine, process, control, groups, folder, options);
        if (!results[process].status.ok()) control.End();
      });
    }
    for (std::thread& thread : threads) thread.join();
    return results;
  }

  void ExpectSameFiles(const std::string& a, const std::string& b) {
    const absl::StatusOr<std::vector<std::string>> names = ListFolder(a), others = ListFolder(b);
    ASSERT_TRUE(names.ok()) << names.status();
    ASSERT_TRUE(others.ok()) << others.status();
    ASSERT_EQ(*names, *others);
    for (const std::string& name : *names) {
      EXPECT_TRUE(*ReadFile(JoinPath(a, name), 1 << 30) == *ReadFile(JoinPath(b, name), 1 << 30)) << name;
    }
  }
  void ExpectSameCheckpoint(const std::string& a, const std::string& b, int64_t step) {
    ExpectSameFiles(JoinPath(Path(a), CheckpointFolderName(step)), JoinPath(Path(b), CheckpointFolderName(step)));
  }

 private:
  Result RunProcess(const Job& job, int process, ThreadProcesses& control, Groups& groups, const std::string& folder,
                    const RunOptions& options) {
    const SpanningBackend backend(groups, options.fault);
    const int ranks = static_cast<int>(job.sharding.ranks), processes = control.size();
    TrainerOptions trainer_options{.backend = &backend,
                                   .control = &control[process],
                                   .checkpoint_folder = Path(folder),
                                   .resume = {.from = options.resume},
                                   .failure_folder = Path(absl::StrCat(folder, "-failures"))};
    for (int rank = ranks * process / processes; rank < ranks * (process + 1) / processes; ++rank) {
      trainer_options.ranks.push_back(rank);
    }
    if (options.ranks) trainer_options.ranks = options.ranks(process);
    if (options.data) trainer_options.data = options.data(process);
    Result result;
    absl::StatusOr<std::unique_ptr<Trainer>> trainer = Trainer::Create(job, trainer_options);
    if (!trainer.ok()) {
      result.status = trainer.status();
      return result;
    }
    result.status = (*trainer)->Run({.on_step =
                                         [&](const StepReport& report) {
                                           result.losses.push_back(report.loss);
                                           result.peak_bytes = report.peak_bytes_measured;
                                           if (options.on_step) options.on_step(process, report.step, **trainer);
                                           return options.result_of_step ? options.result_of_step(process, report.step)
                                                                         : absl::OkStatus();
                                         },
                                     .on_evaluation =
                                         [&](const EvaluationReport& report) {
                                           result.losses.push_back(report.loss);
                                           return absl::OkStatus();
                                         },
                                     .on_checkpoint =
                                         [&](const CheckpointReport& report) {
                                           result.saved.push_back(absl::StrCat(report.step, " ", report.bytes));
                                           return report.status;
                                         }});
    return result;
  }

  const TempFolder temp_;
};

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

TEST_F(ProcessesTest, ProcessesWithDifferentJobsAreRefused) {
  const auto job = [&](int process) {
    return MakeJob({absl::StrCat("optimizer.learning_rate=", process == 2 ? "2e-2" : "1e-2")});
  };
  for (const Result& result : Run(MakeJob(), 3, "different", {.job = job})) {
    EXPECT_EQ(result.status.code(), absl::StatusCode::kFailedPrecondition) << result.status;
    EXPECT_THAT(std::string(result.status.message()), HasSubstr("processes disagree about the job: process 0 has"));
    EXPECT_THAT(std::string(result.status.message()), HasSubstr("process 2 has"));
  }
}

TEST_F(ProcessesTest, AnErrorOfOneProcessAtTheStartIsTheErrorOfAll) {
  const auto job = [&](int process) {
    return MakeJob({process == 1 ? absl::StrCat("data.path=", Path("missing")) : "name=job"});
  };
  for (const Result& result : Run(MakeJob(), 2, "missing", {.job = job})) {
    EXPECT_EQ(result.status.code(), absl::StatusCode::kNotFound) << result.status;
    EXPECT_THAT(std::string(result.status.message()), HasSubstr("process 1: "));
    EXPECT_THAT(std::string(result.status.message()), HasSubstr("missing"));
  }
}

TEST_F(ProcessesTest, AnErrorOfOneCallbackEndsTheRunOfAllWithASave) {
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

TEST_F(ProcessesTest, AStepThatIsNotFiniteIsTheSameDecisionOfAll) {
  const auto spoil = [](int process, int64_t step, Trainer& trainer) {
    if (process != 1 || step != 3) return;
    for (const Parameter& parameter : trainer.parameters()) {  // Writes the shards of this process.
      const std::vector<float> values(parameter.elements(), std::numeric_limits<float>::infinity());
      EXPECT_TRUE(trainer.WriteParameter(parameter.name, 0, values).ok()) << parameter.name;
    }
  };
  for (const Result& result : Run(MakeJob(), 3, "stop", {.on_step = spoil})) {
    EXPECT_EQ(result.status.code(), absl::StatusCode::kDataLoss) << result.status;
    EXPECT_THAT(std::string(result.status.message()),
                HasSubstr("step 4: the loss or the gradient is not finite (on 5 of"));
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
TEST_F(ProcessesTest, ASkippedCollectiveIsNamedByAllAndReported) {
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

TEST_F(ProcessesTest, WhoSkipsOrMistakesACollectiveIsAlwaysNamed) {
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
TEST_F(ProcessesTest, AReportSaysWhichStateTheProcessHeldAndWhichIsSaved) {
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

TEST_F(ProcessesTest, WhatAllProcessesWriteIsWhatOneWrites) {
  const auto write = [](int, int64_t step, Trainer& trainer) {
    if (step != 2) return;
    for (const Parameter& parameter : trainer.parameters()) {
      // Begins and ends within shards.
      const int64_t begin = parameter.elements() / 3;
      std::vector<float> values(parameter.elements() / 2);
      for (size_t i = 0; i < values.size(); ++i) values[i] = 1e-3f * static_cast<float>(i % 50);
      EXPECT_TRUE(trainer.WriteParameter(parameter.name, begin, values).ok()) << parameter.name;
      for (const std::string& state : trainer.optimizer_states()) {
        EXPECT_TRUE(trainer.WriteOptimizerState(state, parameter.name, begin, values).ok()) << parameter.name;
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

TEST_F(ProcessesTest, CopiesOfTheStateStayEqualWhateverIsReplicated) {
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
TEST_F(ProcessesTest, RanksWhoseCopiesOfTheStateDifferAreNamed) {
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
        Case{"sharding={ranks: 6 shard_ranks: 2}", 3, "rank 0 differs from ranks 2, 4"}}) {
    SCOPED_TRACE(c.sharding);
    const auto corrupt = [&](int process, int64_t step, Trainer& trainer) {
      if (process != 0 || step != 3) return;
      const std::vector<float> value = {c.value};
      EXPECT_TRUE(trainer.WriteParameter(trainer.parameters()[0].name, 0, value).ok());
    };
    const Job job =
        MakeJob({c.sharding, absl::StrCat("runtime.check_every_steps=", c.every_steps), "checkpoint.every_steps=1"});
    const std::string folder = absl::StrCat("differ", c.differ, c.every_steps);
    for (const Result& result : Run(job, c.processes, folder, {.on_step = corrupt})) {
      EXPECT_EQ(result.status.code(), absl::StatusCode::kDataLoss) << result.status;
      EXPECT_TRUE(IsAgreed(result.status));
      EXPECT_THAT(std::string(result.status.message()),
                  HasSubstr(absl::StrCat("after step 4 ", c.differ, " in weights or optimizer state, of which they ")));
      EXPECT_EQ(result.losses.size(), 3);
      EXPECT_EQ(result.saved.size(), 3);  // The state after step 4 is not saved.
    }
  }
}

TEST_F(ProcessesTest, ASlowRankIsNamed) {
  const Job job = MakeJob({"lr_schedule.steps=22", "checkpoint.every_steps=0", "telemetry.evaluate_every=0"});
  std::vector<std::string> lines;  // What process 0 says after each step.
  const auto look = [&](int process, int64_t step, Trainer& trainer) {
    if (process == 0) {
      lines.push_back(trainer.slow_ranks());
    } else {
      EXPECT_EQ(trainer.slow_ranks(), "") << step;
    }
  };
  const Fault slow = {.group = "shard of rank 0, gather", .rank = 3, .delay_seconds = 1e-2};
  for (const Result& result : Run(job, 2, "slow", {.on_step = look, .fault = slow})) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
  lines.erase(std::remove(lines.begin(), lines.end(), ""), lines.end());
  ASSERT_EQ(lines.size(), 1) << ::testing::PrintToString(lines);
  EXPECT_THAT(lines[0], HasSubstr("slow: rank 3 took more than 20 % longer than the median rank in each of 20 steps"));
}

TEST_F(ProcessesTest, EachRankIsHeldByOneProcess) {
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
TEST_F(ProcessesTest, ADamagedCheckpointIsPassedOverByAll) {
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

TEST_F(ProcessesTest, ParametersOfOtherProcessesCannotBeRead) {
  const auto read = [](int process, int64_t step, Trainer& trainer) {
    if (step > 1) return;
    const Parameter& parameter = trainer.parameters()[0];
    std::vector<float> values(parameter.elements());
    const absl::Status status = trainer.ReadParameter(parameter.name, absl::MakeSpan(values));
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
    const Parameter& parameter = trainer.parameters()[0];
    std::vector<float> mine(parameter.elements());
    const absl::Status status = trainer.ReadParameter(parameter.name, absl::MakeSpan(mine));
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
    const absl::StatusOr<absl::Span<const float>> mine = trainer.Logits({'t', 'h', 'e'});
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
