#include "engine/runtime/world.h"

#include <algorithm>
#include <new>

#include "absl/strings/str_cat.h"
#include "engine/runtime/warm_up.h"
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
  SHALE_ASSIGN_OR_RETURN(world->threads_, RankThreads::Create(options.ranks));
  for (const auto& device : world->devices_) world->ops_.push_back(backend.CreateOps(options.ranks, device.get()));
  if (backend.warms_up()) SHALE_RETURN_IF_ERROR(world->WarmUp(options.programs));
  world->description_ = backend.Describe(world->devices_);
  SHALE_RETURN_IF_ERROR(backend.CheckMemory(world->devices_, arena_bytes));
  for (int rank = 0; rank < options.ranks; ++rank) {
    Communicator *gather = nullptr, *reduce = nullptr;
    if (options.ranks > 1) {
      if (options.wrap) {
        world->gather_[rank] = options.wrap(std::move(world->gather_[rank]), rank, StreamId::kGather);
        world->reduce_[rank] = options.wrap(std::move(world->reduce_[rank]), rank, StreamId::kReduce);
      }
      gather = world->gather_[rank].get();
      reduce = world->reduce_[rank].get();
    }
    SHALE_ASSIGN_OR_RETURN(std::unique_ptr<RankRuntime> runtime,
                           RankRuntime::Create(*world->devices_[rank], *world->ops_[rank], gather, reduce, rank,
                                               arena_bytes, options.host_memory));
    world->ranks_.push_back(std::move(runtime));
  }
  SHALE_RETURN_IF_ERROR(world->ForEachCommunicator([&](Communicator& communicator, int rank) {
    Arena& arena = world->rank(rank).arena();
    const absl::Status status = communicator.RegisterMemory(arena.base(), arena.size_bytes());
    // Unblocks peers that wait, in either group, for what this rank will not begin any more.
    if (!status.ok()) world->rank(rank).Abort(status);
    return status;
  }));
  return world;
}

World::~World() {
  // Must happen before the arenas are freed. Errors of communicators were reported where they occurred.
  if (threads_ != nullptr) {
    ForEachCommunicator([](Communicator& communicator, int) {
      communicator.DeregisterMemory().IgnoreError();
      return absl::OkStatus();
    }).IgnoreError();
  }
}

absl::Status World::ForEachCommunicator(const std::function<absl::Status(Communicator&, int rank)>& visit) {
  return ForEachRank([&](int rank) -> absl::Status {
    for (const auto* group : {&gather_, &reduce_}) {
      if (!group->empty()) SHALE_RETURN_IF_ERROR(visit(*(*group)[rank], rank));
    }
    return absl::OkStatus();
  });
}

absl::Status World::WarmUp(const std::vector<const StepProgram*>& programs) {
  return ForEachRank([&](int rank) -> absl::Status {
    absl::Status status;
    for (const StepProgram* program : programs) {
      if (status.ok()) status = WarmUpOps(*program, *ops_[rank], *devices_[rank]);
    }
    for (const auto* group : {&gather_, &reduce_}) {
      if (group->empty()) continue;
      if (status.ok()) status = WarmUpCollectives(*(*group)[rank], *devices_[rank]);
      if (!status.ok()) (*group)[rank]->Abort(status);
    }
    return status;
  });
}

absl::Status World::ForEachRank(const std::function<absl::Status(int)>& work) {
  return threads_->Run([&](int rank) {
    try {
      return work(rank);
    } catch (const std::bad_alloc&) {
      absl::Status status = absl::ResourceExhaustedError(
          absl::StrCat("rank ", rank, " cannot allocate memory; free some on this machine, or run fewer ranks on it"));
      // During warm-up this rank has no RankRuntime yet that could be stopped.
      rank < std::ssize(ranks_) ? ranks_[rank]->Stop(status) : AbortGroups(rank, status);
      return status;
    }
  });
}

void World::AbortGroups(int rank, const absl::Status& reason) {
  for (const auto* group : {&gather_, &reduce_}) {
    if (!group->empty()) (*group)[rank]->Abort(reason);
  }
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
  result->executors_.resize(world.size());
  SHALE_RETURN_IF_ERROR(world.ForEachRank([&](int rank) -> absl::Status {
    SHALE_ASSIGN_OR_RETURN(result->executors_[rank], Executor::Create(program, plan, world.rank(rank), options));
    return absl::OkStatus();
  }));
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
