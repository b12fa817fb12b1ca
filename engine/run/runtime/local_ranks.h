// LocalRanks: the ranks of a job's mesh that this process holds, each with a device, ops, communicators, an arena, and
// a thread that is kept from step to step. MemoryLedger says what takes the devices' memory outside the arenas while
// ranks start, and what takes it later.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/compile/memory/plan.h"
#include "engine/run/runtime/backend.h"
#include "engine/run/runtime/executor.h"
#include "kernels/device/device.h"
#include "sharding/mesh.h"

namespace shale {

class RankThreads {
 public:
  // Returns ResourceExhausted if the system refuses to start a thread.
  static absl::StatusOr<std::unique_ptr<RankThreads>> Create(int ranks);
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;

  // Calls work(rank) in every rank's thread and waits for all of them. Returns the first error in rank order that is
  // not Aborted, and otherwise the first Aborted one: Aborted only repeats the error of a peer. One caller at a time.
  // `work` must not throw.
  absl::Status Run(const std::function<absl::Status(int)>& work);

 private:
  explicit RankThreads(int ranks) : results_(ranks) {}
  void Loop(int rank);

  std::mutex mutex_;
  std::condition_variable wake_, finished_;
  // mutex_ guards the members below, except threads_.
  const std::function<absl::Status(int)>* work_ = nullptr;
  int64_t round_ = 0;
  int running_ = 0;
  bool stop_ = false;
  std::vector<absl::Status> results_;
  std::vector<std::thread> threads_;
};

// Compares what devices have free from one moment to the next. So it also counts what other programs take or free in
// between, and memory that libraries keep without asking the device. If a device cannot tell its memory, the ledger is
// empty. Used by one thread at a time.
class MemoryLedger {
 public:
  // Begins with the memory that is in use now. `devices` are those of the ranks: ranks that share one follow each
  // other.
  explicit MemoryLedger(const std::vector<std::shared_ptr<Device>>& devices);

  // Enters what has been taken since the last call, or since the beginning, under the name `taker`. Leaves out
  // `planned_bytes` for each rank.
  void Enter(absl::string_view taker, int64_t planned_bytes = 0);
  // What is entered from now on is late: it comes out of the memory that was left free for it.
  void BeginLate() { first_late_ = entries_.size(); }

  // Returns a line with all entries, each with its value on the device where it is largest. Empty if the ledger is.
  std::string Describe() const;
  // Returns a line that says by how much the late entries exceed `reserve_bytes` on the device where they are largest.
  // Empty if they do not.
  std::string DescribeExcess(int64_t reserve_bytes) const;

 private:
  struct OfDevice {
    std::shared_ptr<Device> device;
    int64_t ranks = 0;
    int64_t free_bytes = 0;  // At the last entry.
  };
  struct Entry {
    std::string taker;
    std::vector<int64_t> bytes;  // By device. Negative if memory was freed.
  };
  std::string List(size_t begin, size_t end) const;

  std::vector<OfDevice> devices_;  // Empty if one of them cannot tell its memory.
  std::vector<Entry> entries_;
  size_t first_late_ = static_cast<size_t>(-1);
};

struct LocalRanksOptions {
  Mesh mesh;
  // The ranks of the mesh that this process holds, ascending. Empty: all of them.
  std::vector<int> ranks;
  // The process of each rank of the mesh. May be empty if `ranks` is.
  std::vector<int> process_of_rank;
  // Creates the groups that have ranks of other processes. Empty: Backend::CreateGroup does.
  GroupFactory create_spanning_group;
  bool synchronous = false;  // See Backend::CreateDevices.
  // The programs that will run, and their plans. If the backend warms up (Backend::warms_up), Create runs those of
  // their ops that use libraries once before it allocates the arenas, so that the memory that the libraries take is
  // known by then. Borrowed during Create.
  std::vector<ProgramAndPlan> programs;
  // The plan for each rank. It must cover all programs that will run.
  HostMemoryPlan host_memory;
  // Wraps each communicator, for tests that count collectives. May be empty.
  std::function<std::unique_ptr<Communicator>(std::unique_ptr<Communicator>, int rank, StreamId stream)> wrap;
};

// Owns its ranks and all their resources. Does not refer to the backend after Create. Used by one caller at a time.
// Ranks are numbered by their place among the local ranks; RankRuntime::rank is the number in the mesh.
class LocalRanks {
 public:
  ~LocalRanks();
  // Allocates one arena of `arena_bytes` and one piece of pinned host memory per rank. Returns ResourceExhausted if
  // memory or threads are missing, and otherwise the errors of the backend and of what it creates. The free memory of
  // devices is checked before the first arena is allocated. Communicators register the arenas after that, and graphs
  // need their addresses, so Backend::late_bytes is left free for both.
  static absl::StatusOr<std::unique_ptr<LocalRanks>> Create(const Backend& backend, const LocalRanksOptions& options,
                                                            int64_t arena_bytes);

  const Mesh& mesh() const { return mesh_; }
  int size() const { return static_cast<int>(numbers_.size()); }
  RankRuntime& operator[](int local) { return *runtimes_[local]; }
  // Returns the number in the mesh of a local rank.
  int number(int local) const { return numbers_[local]; }
  std::vector<RankRuntime*> runtimes();
  // Returns the largest measured peak of the local ranks.
  int64_t measured_peak_bytes() const;
  // Returns what Backend::Describe said in Create, before the arenas were allocated, and who has taken memory outside
  // them up to the last EnterMemory.
  std::string description() const;
  // Enters what devices' memory has been taken since the last call, or since Create, under the name `taker`.
  void EnterMemory(absl::string_view taker) { ledger_->Enter(taker); }
  // Returns a line that says by how much memory taken since the check exceeds what was left free for it. Empty if it
  // does not.
  std::string LateMemory() const { return ledger_->DescribeExcess(late_bytes_); }

  // Runs work(local) on every local rank's launching thread and waits for all of them. Returns the first error in rank
  // order that is not Aborted, and otherwise the first Aborted one: Aborted only repeats the error of a peer. If `work`
  // throws std::bad_alloc, returns ResourceExhausted and unblocks the peers; then only destruction may follow. `work`
  // may throw nothing else.
  absl::Status ForEach(const std::function<absl::Status(int local)>& work);

  // Makes all collectives of the local ranks, running or later, fail with `reason`, which unblocks their peers too.
  // Only destruction may follow. Any thread may call it.
  void Abort(const absl::Status& reason);

 private:
  LocalRanks() = default;
  absl::Status CreateGroups(const Backend& backend, const LocalRanksOptions& options);
  absl::Status WarmUp(const std::vector<ProgramAndPlan>& programs);
  void AbortGroups(int local, const absl::Status& reason);
  // Calls `visit` for every communicator of every local rank, in the same order on all ranks, on its rank's launching
  // thread.
  absl::Status ForEachCommunicator(const std::function<absl::Status(Communicator&, int local)>& visit);

  Mesh mesh_;
  std::vector<int> numbers_;  // Number in the mesh, by local rank.
  std::string description_;
  int64_t late_bytes_ = 0;  // Backend::late_bytes.
  std::vector<std::shared_ptr<Device>> devices_;
  std::vector<std::unique_ptr<Ops>> ops_;
  std::vector<std::vector<std::unique_ptr<Communicator>>> communicators_;  // By local rank, in the order of creation.
  std::vector<RankCommunicators> communicators_of_;                        // By local rank.
  std::vector<std::unique_ptr<RankRuntime>> runtimes_;
  std::unique_ptr<RankThreads> threads_;
  std::unique_ptr<MemoryLedger> ledger_;
};

// One program of a job, ready to run on all local ranks. Borrows the ranks, the program and the plan; the program must
// not move.
class LocalProgram {
 public:
  static absl::StatusOr<std::unique_ptr<LocalProgram>> Create(LocalRanks& ranks, const StepProgram& program,
                                                              const MemoryPlan& plan, const ExecutorOptions& options);

  // Runs the program once on all local ranks. `inputs` are by local rank.
  absl::Status Run(const std::vector<StepInputs>& inputs);
  // Does the same, and each rank pauses before its first issue of `before` and calls work(local) on its launching
  // thread (Pause). -1: there is no pause.
  absl::Status Run(const std::vector<StepInputs>& inputs, InstructionId before,
                   const std::function<absl::Status(int local)>& work);
  const StepOutputs& outputs(int local) const { return outputs_[local]; }
  // See Executor::SetTracing and Executor::times.
  void SetTracing(bool on);
  absl::Span<const InstructionTime> times(int local) const { return executors_[local]->times(); }

 private:
  explicit LocalProgram(LocalRanks& ranks) : ranks_(ranks), outputs_(ranks.size()) {}
  LocalRanks& ranks_;
  std::vector<std::unique_ptr<Executor>> executors_;
  std::vector<StepOutputs> outputs_;
};

}  // namespace shale
