#include "engine/runtime/world.h"

#include <algorithm>
#include <new>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace shale {

absl::StatusOr<std::unique_ptr<World>> World::Create(const Backend& backend, const WorldOptions& options,
                                                     int64_t arena_bytes) {
  std::unique_ptr<World> world(new World());
  SHALE_ASSIGN_OR_RETURN(world->devices_, backend.CreateDevices(options.ranks, options.synchronous));
  if (options.ranks > 1) {
    SHALE_ASSIGN_OR_RETURN(world->gather_, backend.CreateGroup(world->devices_));
    SHALE_ASSIGN_OR_RETURN(world->reduce_, backend.CreateGroup(world->devices_));
  }
  for (int rank = 0; rank < options.ranks; ++rank) {
    world->ops_.push_back(backend.CreateOps());
    Communicator *gather = nullptr, *reduce = nullptr;
    if (options.ranks > 1) {
      if (options.wrap) {
        world->gather_[rank] = options.wrap(std::move(world->gather_[rank]), rank, StreamId::kGather);
        world->reduce_[rank] = options.wrap(std::move(world->reduce_[rank]), rank, StreamId::kReduce);
      }
      gather = world->gather_[rank].get();
      reduce = world->reduce_[rank].get();
    }
    SHALE_ASSIGN_OR_RETURN(
        std::unique_ptr<RankRuntime> runtime,
        RankRuntime::Create(*world->devices_[rank], *world->ops_[rank], gather, reduce, rank, arena_bytes));
    world->ranks_.push_back(std::move(runtime));
  }
  SHALE_ASSIGN_OR_RETURN(world->threads_, RankThreads::Create(options.ranks));
  return world;
}

absl::Status World::ForEachRank(const std::function<absl::Status(int)>& work) {
  return threads_->Run([&](int rank) {
    try {
      return work(rank);
    } catch (const std::bad_alloc&) {
      absl::Status status = absl::ResourceExhaustedError(
          absl::StrCat("rank ", rank, " cannot allocate memory; free some on this machine, or run fewer ranks on it"));
      ranks_[rank]->Stop(status);
      return status;
    }
  });
}

std::vector<RankRuntime*> World::ranks() {
  std::vector<RankRuntime*> ranks;
  for (const auto& rank : ranks_) ranks.push_back(rank.get());
  return ranks;
}

int64_t World::measured_peak_bytes() const {
  int64_t peak = 0;
  for (const auto& rank : ranks_) peak = std::max(peak, rank->measured_peak_bytes());
  return peak;
}

absl::StatusOr<std::unique_ptr<WorldProgram>> WorldProgram::Create(World& world, const StepProgram& program,
                                                                   const MemoryPlan& plan,
                                                                   const ExecutorOptions& options) {
  std::unique_ptr<WorldProgram> result(new WorldProgram(world));
  for (int rank = 0; rank < world.size(); ++rank) {
    SHALE_ASSIGN_OR_RETURN(std::unique_ptr<Executor> executor,
                           Executor::Create(program, plan, world.rank(rank), options));
    result->executors_.push_back(std::move(executor));
  }
  return result;
}

void WorldProgram::SetTracing(bool on) {
  for (const auto& executor : executors_) executor->SetTracing(on);
}

absl::Status WorldProgram::Run(const std::vector<StepInputs>& inputs) {
  SHALE_CHECK(std::ssize(inputs) == world_.size());
  return world_.ForEachRank([&](int rank) { return executors_[rank]->Run(inputs[rank], outputs_[rank]); });
}

}  // namespace shale
