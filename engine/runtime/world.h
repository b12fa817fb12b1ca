// World: the ranks of one process: a device, ops, communicators and an arena for each.
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
  // What is going to run: where the backend warms up, its libraries are used once before the arenas are allocated, so
  // that all they take shows first. Borrowed for the call.
  std::vector<const StepProgram*> programs;
  // Of each rank. The programs that are to run must be among those of the plan.
  HostMemoryPlan host_memory;
  // Wraps each communicator, for tracing. May be null.
  std::function<std::unique_ptr<Communicator>(std::unique_ptr<Communicator>, int rank, StreamId stream)> wrap;
};

class World {
 public:
  ~World();
  // Allocates one arena of `arena_bytes` and one piece of pinned host memory per rank. ResourceExhausted if there is
  // not the memory, or the threads: what is missing is known before the first arena is there.
  static absl::StatusOr<std::unique_ptr<World>> Create(const Backend& backend, const WorldOptions& options,
                                                       int64_t arena_bytes);

  int size() const { return static_cast<int>(ranks_.size()); }
  RankRuntime& rank(int r) { return *ranks_[r]; }
  std::vector<RankRuntime*> ranks();
  // Largest over the ranks.
  int64_t measured_peak_bytes() const;
  // Backend::Describe, as of Create, before the arenas were allocated.
  const std::string& description() const { return description_; }

  // Runs work(rank) on every rank's launching thread, and waits. The first failure (in rank order, a peer's abort last)
  // is returned. `work` may throw std::bad_alloc, and nothing else: ResourceExhausted; the peers are unblocked then,
  // and only destruction may follow.
  absl::Status ForEachRank(const std::function<absl::Status(int)>& work);

 private:
  World() = default;
  absl::Status WarmUp(const std::vector<const StepProgram*>& programs);
  void AbortGroups(int rank, const absl::Status& reason);
  // Calls visit(communicator, rank) for those of both groups, on all ranks' launching threads.
  absl::Status ForEachCommunicator(const std::function<absl::Status(Communicator&, int rank)>& visit);

  std::string description_;
  std::vector<std::shared_ptr<Device>> devices_;
  std::vector<std::unique_ptr<Ops>> ops_;
  std::vector<std::unique_ptr<Communicator>> gather_, reduce_;
  std::vector<std::unique_ptr<RankRuntime>> ranks_;
  std::unique_ptr<RankThreads> threads_;
};

// One program of a job, ready to run on every rank of a world. Borrows all three; the program must stay where it is.
class WorldProgram {
 public:
  static absl::StatusOr<std::unique_ptr<WorldProgram>> Create(World& world, const StepProgram& program,
                                                              const MemoryPlan& plan, const ExecutorOptions& options);

  // Runs it once on all ranks; inputs by rank. Outputs are those of each rank.
  absl::Status Run(const std::vector<StepInputs>& inputs);
  const StepOutputs& outputs(int rank) const { return outputs_[rank]; }
  // See Executor.
  void SetTracing(bool on);
  absl::Span<const InstructionTime> times(int rank) const { return executors_[rank]->times(); }

 private:
  explicit WorldProgram(World& world) : world_(world), outputs_(world.size()) {}
  World& world_;
  std::vector<std::unique_ptr<Executor>> executors_;
  std::vector<StepOutputs> outputs_;
};

}  // namespace shale
