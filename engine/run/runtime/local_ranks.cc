#include "engine/run/runtime/local_ranks.h"

#include <algorithm>
#include <new>
#include <numeric>
#include <set>
#include <system_error>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/run/runtime/warm_up.h"
#include "engine/strings/printing.h"
#include "kernels/check.h"
#include "kernels/op.h"
#include "kernels/ops/matmul.h"

namespace shale {
namespace {

std::string Signed(int64_t bytes) {
  return absl::StrCat(bytes < 0 ? "-" : "", FormatBytes(bytes < 0 ? -bytes : bytes));
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankThreads>> RankThreads::Create(int ranks) {
  auto result = absl::WrapUnique(new RankThreads(ranks));
  RankThreads& self = *result;
  self.threads_.reserve(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    try {
      self.threads_.emplace_back([&self, rank] { self.Loop(rank); });
    } catch (const std::system_error& e) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot start a thread for rank ", rank, " of ", ranks, ": ", e.what(),
                       "; raise the limit on threads (ulimit -u) or run fewer ranks in one process"));
    }
  }
  return result;
}

RankThreads::~RankThreads() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

absl::Status RankThreads::Run(const std::function<absl::Status(int)>& work) {
  std::unique_lock lock(mutex_);
  work_ = &work;
  running_ = static_cast<int>(threads_.size());
  ++round_;
  wake_.notify_all();
  finished_.wait(lock, [&] { return running_ == 0; });
  work_ = nullptr;
  absl::Status aborted;
  for (const absl::Status& status : results_) {
    if (status.ok()) continue;
    if (status.code() != absl::StatusCode::kAborted) return status;
    aborted.Update(status);
  }
  return aborted;
}

void RankThreads::Loop(int rank) {
  int64_t done = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stop_ || round_ > done; });
    if (stop_) return;
    done = round_;
    const std::function<absl::Status(int)>& work = *work_;
    lock.unlock();
    absl::Status status = work(rank);
    lock.lock();
    results_[rank] = std::move(status);
    if (--running_ == 0) finished_.notify_all();
  }
}

MemoryLedger::MemoryLedger(const std::vector<std::shared_ptr<Device>>& devices) {
  Entry before{.taker = "kernels and other programs"};
  for (const std::shared_ptr<Device>& device : devices) {
    if (!devices_.empty() && devices_.back().device == device) {
      ++devices_.back().ranks;
      continue;
    }
    const absl::StatusOr<DeviceMemory> memory = device->Memory();
    if (!memory.ok()) {
      devices_.clear();
      return;
    }
    devices_.push_back({.device = device, .ranks = 1, .free_bytes = memory->free_bytes});
    before.bytes.push_back(memory->total_bytes - memory->free_bytes);
  }
  entries_.push_back(std::move(before));
}

void MemoryLedger::Enter(absl::string_view taker, int64_t planned_bytes) {
  Entry entry{.taker = std::string(taker)};
  for (OfDevice& of : devices_) {
    const absl::StatusOr<DeviceMemory> memory = of.device->Memory();
    if (!memory.ok()) return;  // The next call that needs this device reports the error.
    entry.bytes.push_back(of.free_bytes - memory->free_bytes - of.ranks * planned_bytes);
    of.free_bytes = memory->free_bytes;
  }
  if (!devices_.empty()) entries_.push_back(std::move(entry));
}

std::string MemoryLedger::List(size_t begin, size_t end) const {
  std::string text;
  for (size_t i = begin; i < end; ++i) {
    const Entry& entry = entries_[i];
    absl::StrAppend(&text, i == begin ? "" : ", ", entry.taker, " ",
                    Signed(*std::max_element(entry.bytes.begin(), entry.bytes.end())));
  }
  return text;
}

std::string MemoryLedger::Describe() const {
  if (devices_.empty()) return "";
  const size_t late = std::min(first_late_, entries_.size());
  std::string text = absl::StrCat("memory taken outside the arenas",
                                  devices_.size() > 1 ? ", the most on a device" : "", ": ", List(0, late));
  if (late < entries_.size()) absl::StrAppend(&text, "; after it was checked: ", List(late, entries_.size()));
  return text;
}

std::string MemoryLedger::DescribeExcess(int64_t reserve_bytes) const {
  int64_t most = 0;
  for (size_t device = 0; device < devices_.size(); ++device) {
    int64_t late = 0;
    for (size_t i = std::min(first_late_, entries_.size()); i < entries_.size(); ++i) late += entries_[i].bytes[device];
    most = std::max(most, late);
  }
  if (most <= reserve_bytes) return "";
  return absl::StrCat(FormatBytes(most), " of a device's memory were taken after it was checked (",
                      List(first_late_, entries_.size()), "), and only ", FormatBytes(reserve_bytes),
                      " had been left free for that; a job whose arenas fill the device may fail: lower ",
                      "memory.budget_bytes by ", most - reserve_bytes);
}

absl::StatusOr<std::unique_ptr<LocalRanks>> LocalRanks::Create(const Backend& backend, const LocalRanksOptions& options,
                                                               int64_t arena_bytes) {
  std::unique_ptr<LocalRanks> local(new LocalRanks());
  local->mesh_ = options.mesh;
  local->numbers_ = options.ranks;
  if (local->numbers_.empty()) {
    local->numbers_.resize(options.mesh.ranks());
    std::iota(local->numbers_.begin(), local->numbers_.end(), 0);
  }
  const int size = local->size();
  SHALE_ASSIGN_OR_RETURN(local->devices_, backend.CreateDevices(size, options.synchronous));
  local->ledger_ = std::make_unique<MemoryLedger>(local->devices_);
  SHALE_RETURN_IF_ERROR(local->CreateGroups(backend, options));
  local->EnterMemory("groups");
  SHALE_ASSIGN_OR_RETURN(local->threads_, RankThreads::Create(size));
  for (const auto& device : local->devices_) local->ops_.push_back(backend.CreateOps(size, device.get()));
  if (backend.warms_up()) SHALE_RETURN_IF_ERROR(local->WarmUp(options.programs));
  local->description_ = backend.Describe(local->devices_);
  SHALE_RETURN_IF_ERROR(backend.CheckMemory(local->devices_, arena_bytes));
  local->late_bytes_ = backend.late_bytes();
  local->ledger_->BeginLate();
  for (int i = 0; i < size; ++i) {
    SHALE_ASSIGN_OR_RETURN(std::unique_ptr<RankRuntime> runtime,
                           RankRuntime::Create(*local->devices_[i], *local->ops_[i], local->communicators_of_[i],
                                               options.mesh, local->numbers_[i], arena_bytes, options.host_memory));
    local->runtimes_.push_back(std::move(runtime));
  }
  local->ledger_->Enter("arenas beyond their bytes", arena_bytes);
  SHALE_RETURN_IF_ERROR(local->ForEachCommunicator([&](Communicator& communicator, int i) {
    Arena& arena = (*local)[i].arena();
    const absl::Status status = communicator.RegisterMemory(arena.base(), arena.size_bytes());
    // Unblocks peers that wait, in any group, for what this rank will not begin any more.
    if (!status.ok()) (*local)[i].Abort(status);
    return status;
  }));
  local->EnterMemory("windows");
  return local;
}

std::string LocalRanks::description() const {
  const std::string taken = ledger_->Describe();
  return absl::StrCat(description_, description_.empty() || taken.empty() ? "" : "\n", taken);
}

absl::Status LocalRanks::CreateGroups(const Backend& backend, const LocalRanksOptions& options) {
  communicators_.resize(size());
  communicators_of_.resize(size());
  for (const MeshAxis axis : {MeshAxis::kShard, MeshAxis::kReplicate, MeshAxis::kAll}) {
    if (mesh_.Serving(axis) != axis || mesh_.size(axis) == 1) continue;
    std::set<std::vector<int>> groups;
    for (int rank : numbers_) groups.insert(mesh_.Group(rank, axis));
    for (const StreamId stream : {StreamId::kGather, StreamId::kReduce}) {
      // The gather stream only has collectives along `shard`. Other axes get no communicator for it, because each takes
      // device memory.
      if (stream == StreamId::kGather && axis != MeshAxis::kShard) continue;
      for (const std::vector<int>& group : groups) {
        GroupMembers members{.name = absl::StrCat(ToString(axis), " of rank ", group[0], ", ", ToString(stream)),
                             .size = static_cast<int>(group.size())};
        std::vector<int> locals;
        for (int i = 0; i < size(); ++i) {
          const auto found = std::find(group.begin(), group.end(), numbers_[i]);
          if (found == group.end()) continue;
          locals.push_back(i);
          members.places.push_back(static_cast<int>(found - group.begin()));
          members.devices.push_back(devices_[i]);
        }
        if (!options.process_of_rank.empty()) {
          for (const int rank : group) members.processes.push_back(options.process_of_rank[rank]);
        }
        const bool spanning = members.spans_processes() && options.create_spanning_group != nullptr;
        SHALE_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<Communicator>> made,
                               spanning ? options.create_spanning_group(members) : backend.CreateGroup(members));
        for (size_t member = 0; member < locals.size(); ++member) {
          const int i = locals[member];
          if (options.wrap) made[member] = options.wrap(std::move(made[member]), numbers_[i], stream);
          communicators_of_[i].Set(axis, stream, made[member].get());
          communicators_[i].push_back(std::move(made[member]));
        }
      }
    }
  }
  return absl::OkStatus();
}

LocalRanks::~LocalRanks() {
  // Communicators must deregister the arenas before these are freed. Their errors were reported where they occurred.
  if (threads_ != nullptr) {
    ForEachCommunicator([](Communicator& communicator, int) {
      communicator.DeregisterMemory().IgnoreError();
      return absl::OkStatus();
    }).IgnoreError();
  }
}

absl::Status LocalRanks::ForEachCommunicator(const std::function<absl::Status(Communicator&, int local)>& visit) {
  return ForEach([&](int local) -> absl::Status {
    for (const auto& communicator : communicators_[local]) SHALE_RETURN_IF_ERROR(visit(*communicator, local));
    return absl::OkStatus();
  });
}

absl::Status LocalRanks::WarmUp(const std::vector<ProgramAndPlan>& programs) {
  // Attention and matmuls are computed by different libraries.
  for (const bool matmuls : {true, false}) {
    const auto wanted = [&](const Op& op) { return op.Is<MatMul>() == matmuls; };
    SHALE_RETURN_IF_ERROR(ForEach([&](int local) {
      const int shard = mesh_.index(numbers_[local], MeshAxis::kShard);
      return WarmUpOps(programs, shard, wanted, *ops_[local], *devices_[local]);
    }));
    EnterMemory(matmuls ? "matmuls" : "attention");
  }
  SHALE_RETURN_IF_ERROR(ForEach([&](int local) -> absl::Status {
    absl::Status status;
    for (const MeshAxis axis : {MeshAxis::kShard, MeshAxis::kReplicate, MeshAxis::kAll}) {
      for (const StreamId stream : {StreamId::kGather, StreamId::kReduce}) {
        Communicator* const communicator = communicators_of_[local].Get(axis, stream);
        if (communicator == nullptr) continue;
        if (status.ok()) {
          status = WarmUpCollectives(programs, mesh_, axis, stream, *communicator, *devices_[local]);
        }
        if (!status.ok()) communicator->Abort(status);
      }
    }
    return status;
  }));
  EnterMemory("collectives");
  return absl::OkStatus();
}

absl::Status LocalRanks::ForEach(const std::function<absl::Status(int local)>& work) {
  return threads_->Run([&](int local) {
    try {
      return work(local);
    } catch (const std::bad_alloc&) {
      absl::Status status =
          absl::ResourceExhaustedError(absl::StrCat("rank ", numbers_[local],
                                                    " cannot allocate memory; free some on this machine, or run fewer "
                                                    "ranks on it"));
      // During warm-up this rank has no RankRuntime yet that could be stopped.
      local < std::ssize(runtimes_) ? runtimes_[local]->Stop(status) : AbortGroups(local, status);
      return status;
    }
  });
}

void LocalRanks::Abort(const absl::Status& reason) {
  for (int local = 0; local < size(); ++local) AbortGroups(local, reason);
}

void LocalRanks::AbortGroups(int local, const absl::Status& reason) {
  for (const auto& communicator : communicators_[local]) communicator->Abort(reason);
}

std::vector<RankRuntime*> LocalRanks::runtimes() {
  std::vector<RankRuntime*> runtimes;
  for (const auto& runtime : runtimes_) runtimes.push_back(runtime.get());
  return runtimes;
}

int64_t LocalRanks::measured_peak_bytes() const {
  int64_t peak = 0;
  for (const auto& runtime : runtimes_) peak = std::max(peak, runtime->measured_peak_bytes());
  return peak;
}

absl::StatusOr<std::unique_ptr<LocalProgram>> LocalProgram::Create(LocalRanks& ranks, const StepProgram& program,
                                                                   const MemoryPlan& plan,
                                                                   const ExecutorOptions& options) {
  std::unique_ptr<LocalProgram> result(new LocalProgram(ranks));
  result->executors_.resize(ranks.size());
  SHALE_RETURN_IF_ERROR(ranks.ForEach([&](int local) -> absl::Status {
    SHALE_ASSIGN_OR_RETURN(result->executors_[local], Executor::Create(program, plan, ranks[local], options));
    return absl::OkStatus();
  }));
  return result;
}

void LocalProgram::SetTracing(bool on) {
  for (const auto& executor : executors_) executor->SetTracing(on);
}

absl::Status LocalProgram::Run(const std::vector<StepInputs>& inputs) { return Run(inputs, -1, {}); }

absl::Status LocalProgram::Run(const std::vector<StepInputs>& inputs, InstructionId before,
                               const std::function<absl::Status(int local)>& work) {
  SHALE_CHECK(std::ssize(inputs) == ranks_.size());
  return ranks_.ForEach([&](int local) {
    return executors_[local]->Run(inputs[local], outputs_[local], {before, [&work, local] { return work(local); }});
  });
}

}  // namespace shale
