// World: the ranks of one process, each with a device, ops, communicators and an arena.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/memory/host_plan.h"
#include "engine/runtime/backend.h"
#include "engine/runtime/executor.h"
#include "engine/runtime/rank_threads.h"

namespace shale {

struct WorldOptions {
  int ranks = 1;
  bool synchronous = false;  // See Backend::CreateDevices.
  // The programs that will run. If the backend warms up (Backend::warms_up), their libraries are used once before the
  // arenas are allocated, so that the memory they take is known first. Borrowed for the call.
  std::vector<const StepProgram*> programs;
  // The plan for each rank. It must cover all programs that will run.
  HostMemoryPlan host_memory;
  // Wraps each communicator, for tracing. May be empty.
  std::function<std::unique_ptr<Communicator>(std::unique_ptr<Communicator>, int rank, StreamId stream)> wrap;
};

// Owns the ranks and all their resources. Does not refer to the backend after Create. One caller at a time.
class World {
 public:
  ~World();
  // Allocates one arena of `arena_bytes` and one piece of pinned host memory per rank. Returns ResourceExhausted if
  // memory or threads are missing. The free memory of devices is checked before the first arena is allocated.
  static absl::StatusOr<std::unique_ptr<World>> Create(const Backend& backend, const WorldOptions& options,
                                                       int64_t arena_bytes);

  int size() const { return static_cast<int>(ranks_.size()); }
  RankRuntime& rank(int r) { return *ranks_[r]; }
  std::vector<RankRuntime*> ranks();
  // Returns the largest measured peak of all ranks.
  int64_t measured_peak_bytes() const;
  // Returns what Backend::Describe said in Create, before the arenas were allocated.
  const std::string& description() const { return description_; }

  // Runs work(rank) on every rank's launching thread and waits for all of them. Returns the first error in rank order
  // that is not Aborted, and otherwise the first Aborted one: Aborted only repeats the error of a peer. If `work`
  // throws std::bad_alloc, returns ResourceExhausted and unblocks the peers; then only destruction may follow. `work`
  // may throw nothing else.
  absl::Status ForEachRank(const std::function<absl::Status(int)>& work);

 private:
  World() = default;
  absl::Status WarmUp(const std::vector<const StepProgram*>& programs);
  void AbortGroups(int rank, const absl::Status& reason);
  // Calls visit(communicator, rank) for every communicator of both groups, on its rank's launching thread.
  absl::Status ForEachCommunicator(const std::function<absl::Status(Communicator&, int rank)>& visit);

  std::string description_;
  std::vector<std::shared_ptr<Device>> devices_;
  std::vector<std::unique_ptr<Ops>> ops_;
  std::vector<std::unique_ptr<Communicator>> gather_, reduce_;
  std::vector<std::unique_ptr<RankRuntime>> ranks_;
  std::unique_ptr<RankThreads> threads_;
};

// One program of a job, ready to run on every rank of a world. Borrows the world, the program and the plan; the program
// must not move.
class WorldProgram {
 public:
  static absl::StatusOr<std::unique_ptr<WorldProgram>> Create(World& world, const StepProgram& program,
                                                              const MemoryPlan& plan, const ExecutorOptions& options);

  // Runs the program once on all ranks. `inputs` are by rank.
  absl::Status Run(const std::vector<StepInputs>& inputs);
  const StepOutputs& outputs(int rank) const { return outputs_[rank]; }
  // See Executor::SetTracing and Executor::times.
  void SetTracing(bool on);
  absl::Span<const InstructionTime> times(int rank) const { return executors_[rank]->times(); }

 private:
  explicit WorldProgram(World& world) : world_(world), outputs_(world.size()) {}
  World& world_;
  std::vector<std::unique_ptr<Executor>> executors_;
  std::vector<StepOutputs> outputs_;
};

}  // namespace shale
