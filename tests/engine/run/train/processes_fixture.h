// Runs a job in several processes, which are threads of the test. They share nothing but their control plane, the
// folder of checkpoints, and groups whose communicators they divide among themselves.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/api/data_source.h"
#include "engine/api/job.h"
#include "engine/api/trainer.h"
#include "engine/files/checkpoint/store.h"
#include "engine/files/io/file.h"
#include "engine/run/backends/cpu_backend.h"
#include "gtest/gtest.h"
#include "kernels/check.h"
#include "proto/machine.pb.h"
#include "sharding/comm/in_process.h"
#include "tests/engine/files/io/temp_folder.h"
#include "tests/sharding/comm/thread_processes.h"

namespace shale::testing {

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
  void SetIssue(const CollectiveIssue& place) override { wrapped_->SetIssue(place); }
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
  absl::Status EnqueueAllToAll(const RankPieces& sent, const RankPieces& received, Stream& stream) override {
    return Errs() ? Err(received.vector, stream) : wrapped_->AllToAll(sent, received, stream);
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

// Returns the profile of a machine that does not exist, whose only device computes this many FLOPs a second and moves
// as many bytes.
inline proto::MachineProfile MadeUpMachine(int64_t threads, double per_second) {
  proto::MachineProfile machine;
  machine.set_name("a machine");
  machine.set_processor("a processor");
  machine.set_device("CPU");
  machine.mutable_origin()->set_source(proto::Origin::ESTIMATED);
  machine.set_devices_per_host(1);
  machine.set_threads(threads);
  machine.set_peak_flops_f32(per_second);
  machine.set_peak_flops_bf16(per_second);
  machine.set_copy_bytes_per_second(per_second);
  return machine;
}

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
  const proto::MachineProfile* machine = nullptr;  // Given to process 0 alone, which predicts and searches by it.
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
                                   .machine = process == 0 ? options.machine : nullptr,
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

}  // namespace shale::testing
