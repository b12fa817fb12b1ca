#include "tests/sharding/comm/nccl/stand_in_nccl.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "sharding/comm/sum_ranks.h"
#include "tests/kernels/cuda/host/host_view.h"
#include "tests/kernels/cuda/host/stream.h"

namespace shale {
namespace {

DType DTypeOf(NcclType type) {
  switch (type) {
    case NcclType::kFloat32: return DType::kFloat32;
    case NcclType::kFloat64: return DType::kFloat64;
    default: return DType::kInt64;
  }
}
int64_t SizeOfType(NcclType type) { return type == NcclType::kBytes ? 1 : SizeOf(DTypeOf(type)); }
int ClassOf(int64_t bytes) { return (bytes > StandInNccl::kSmallBytes) + (bytes > StandInNccl::kMediumBytes); }

}  // namespace

// The ranks that share one id.
struct StandInNccl::Clique {
  NcclUniqueId id;
  int size = 0;  // 0 until the first rank has come.
  std::mutex mutex;
  std::condition_variable changed;
  int joined = 0;
  int arrived = 0;
  uint64_t round = 0;
  std::vector<bool> aborted;  // Indexed by rank, like `calls`.
  std::vector<Call> calls;
  std::vector<std::byte> total;  // The result of an AllReduceSum.
  int64_t window_bytes = -1;     // The size of the ranks' windows; -1 if none was registered.

  // Waits for all ranks and returns true. Returns false if this rank is aborted, which then does not count as arrived.
  bool Meet(int rank, const Call& call) {
    std::unique_lock lock(mutex);
    if (aborted[rank]) return false;
    calls[rank] = call;
    if (++arrived == size) return EndRound();
    const uint64_t now = round;
    changed.wait(lock, [&] { return round != now || aborted[rank]; });
    if (round != now) return true;
    --arrived;
    return false;
  }
  // Waits for all ranks again after they have met. An abort does not end this wait.
  void Sync() {
    std::unique_lock lock(mutex);
    if (++arrived == size) {
      EndRound();
      return;
    }
    changed.wait(lock, [&, now = round] { return round != now; });
  }
  bool EndRound() {
    arrived = 0;
    ++round;
    changed.notify_all();
    return true;
  }
};

struct StandInNccl::Comm {
  Clique* clique = nullptr;
  int rank = 0;
  bool connected = false, ended = false;
  int polls_left = 0;
  int collectives = 0;
  void* window = nullptr;                            // The memory of its window.
  std::set<std::pair<absl::string_view, int>> used;  // Kinds and size classes of its collectives so far.
  std::vector<void*> taken;
  std::function<absl::Status()> launch;  // The call in progress; empty if there is none.
  std::atomic<bool> in_use = false;      // By a thread that is in a call.
  std::atomic<int> running = 0;          // Collectives that have not finished.
};

// Reports two threads in one communicator as misuse.
class StandInNccl::OneThread {
 public:
  OneThread(StandInNccl& nccl, Comm& comm) : comm_(comm) {
    if (comm_.in_use.exchange(true, std::memory_order_relaxed)) nccl.Misuse("a communicator in two threads at once");
  }
  ~OneThread() { comm_.in_use.store(false, std::memory_order_relaxed); }

 private:
  Comm& comm_;
};

StandInNccl::StandInNccl(int polls) : polls_(polls) {}
StandInNccl::~StandInNccl() = default;

void StandInNccl::FailCollective(int rank, int nth) {
  failing_nth_ = nth;
  failing_rank_ = rank;
}

std::vector<std::string> StandInNccl::calls() const {
  std::lock_guard lock(mutex_);
  return calls_;
}

std::vector<std::string> StandInNccl::misuse() const {
  std::lock_guard lock(mutex_);
  return misuse_;
}

NcclResult StandInNccl::Misuse(absl::string_view what) {
  std::lock_guard lock(mutex_);
  misuse_.emplace_back(what);
  return NcclResult::kInvalidUsage;
}

NcclResult StandInNccl::GetUniqueId(NcclUniqueId& id) {
  std::lock_guard lock(mutex_);
  Clique& clique = *cliques_.emplace_back(std::make_unique<Clique>());
  const auto number = static_cast<uint32_t>(cliques_.size());
  std::memcpy(clique.id.bytes.data(), &number, sizeof(number));
  id = clique.id;
  return NcclResult::kSuccess;
}

NcclResult StandInNccl::CommInitRank(NcclComm& handle, int size, const NcclUniqueId& id, int rank) {
  std::unique_lock lock(mutex_);
  const auto found = std::find_if(cliques_.begin(), cliques_.end(), [&](const auto& c) { return c->id == id; });
  if (found == cliques_.end()) return NcclResult::kInvalidArgument;
  Clique* clique = found->get();
  Comm& comm = *comms_.emplace_back(std::make_unique<Comm>());
  lock.unlock();
  comm.clique = clique;
  comm.rank = rank;
  comm.polls_left = polls_;
  ++live_;
  handle = &comm;
  std::lock_guard clique_lock(clique->mutex);
  if (clique->size == 0) {
    clique->size = size;
    clique->calls.resize(size);
    clique->aborted.resize(size);
  }
  if (clique->size != size) return Misuse("ranks of one id name different sizes");
  ++clique->joined;
  return NcclResult::kInProgress;
}

NcclResult StandInNccl::CommGetAsyncError(NcclComm handle, NcclResult& state) {
  Comm& comm = *static_cast<Comm*>(handle);
  OneThread one(*this, comm);
  if (comm.ended) return Misuse("CommGetAsyncError of a communicator that has ended");
  state = NcclResult::kInProgress;
  if (--comm.polls_left >= 0) return NcclResult::kSuccess;
  if (!comm.connected) {
    std::lock_guard lock(comm.clique->mutex);
    comm.connected = comm.clique->joined == comm.clique->size;
    if (failing_init_ == comm.rank)
      state = NcclResult::kSystemError;
    else if (failing_init_ < 0 && comm.connected)
      state = NcclResult::kSuccess;
    return NcclResult::kSuccess;
  }
  state = failing_ == comm.rank ? NcclResult::kRemoteError : NcclResult::kSuccess;
  if (comm.launch == nullptr) return NcclResult::kSuccess;
  if (!std::exchange(comm.launch, nullptr)().ok()) state = NcclResult::kUnhandledCudaError;
  return NcclResult::kSuccess;
}

bool StandInNccl::Take(Comm& comm, int64_t bytes) {
  if (bytes == 0) return true;
  const absl::StatusOr<void*> memory = runtime_->Malloc(bytes);
  if (memory.ok()) comm.taken.push_back(*memory);
  return memory.ok();
}

NcclResult StandInNccl::End(Comm& comm) {
  for (void* memory : comm.taken) runtime_->Free(memory).IgnoreError();
  comm.taken.clear();
  comm.ended = true;
  --live_;
  return NcclResult::kSuccess;
}

NcclResult StandInNccl::CommDestroy(NcclComm handle) {
  Comm& comm = *static_cast<Comm*>(handle);
  OneThread one(*this, comm);
  if (comm.ended) return Misuse("CommDestroy of a communicator that has ended");
  if (comm.launch != nullptr || !comm.connected) Misuse("CommDestroy while a call is in progress");
  if (comm.window != nullptr) Misuse("CommDestroy of a communicator with a window");
  if (comm.running != 0) Misuse("CommDestroy would wait for collectives that have not finished");
  return End(comm);
}

NcclResult StandInNccl::CommAbort(NcclComm handle) {
  Comm& comm = *static_cast<Comm*>(handle);
  OneThread one(*this, comm);
  if (comm.ended) return Misuse("CommAbort of a communicator that has ended");
  comm.launch = nullptr;
  ++aborted_;
  if (comm.window != nullptr) {
    std::lock_guard lock(mutex_);
    --memory_[std::exchange(comm.window, nullptr)].windows;
  }
  std::lock_guard lock(comm.clique->mutex);
  comm.clique->aborted[comm.rank] = true;
  comm.clique->changed.notify_all();
  return End(comm);
}

NcclResult StandInNccl::MemAlloc(void*& memory, int64_t size_bytes) {
  constexpr uintptr_t kAlignment = 4096;
  absl::StatusOr<void*> allocated = runtime_->Malloc(size_bytes + kAlignment);
  if (!allocated.ok()) return NcclResult::kUnhandledCudaError;
  const auto address = reinterpret_cast<uintptr_t>(*allocated);
  memory = reinterpret_cast<void*>((address + kAlignment - 1) / kAlignment * kAlignment);
  std::lock_guard lock(mutex_);
  memory_[memory] = {.allocation = *allocated, .bytes = size_bytes};
  return NcclResult::kSuccess;
}

NcclResult StandInNccl::MemFree(void* memory) {
  std::unique_lock lock(mutex_);
  const auto found = memory_.find(memory);
  if (found == memory_.end()) {
    lock.unlock();
    return Misuse("MemFree of memory that is not NCCL's");
  }
  const Memory freed = found->second;
  memory_.erase(found);
  lock.unlock();
  if (freed.windows != 0) Misuse("MemFree of a window's memory");
  return runtime_->Free(freed.allocation).ok() ? NcclResult::kSuccess : NcclResult::kUnhandledCudaError;
}

NcclResult StandInNccl::CommWindowRegister(NcclComm handle, void* memory, int64_t size_bytes, NcclWindow& window) {
  Comm& comm = *static_cast<Comm*>(handle);
  OneThread one(*this, comm);
  if (comm.launch != nullptr || !comm.connected) return Misuse("CommWindowRegister while a call is in progress");
  {
    std::unique_lock lock(mutex_);
    const auto found = memory_.find(memory);
    const bool whole = found != memory_.end() && found->second.bytes == size_bytes;
    if (whole) ++found->second.windows;
    lock.unlock();
    if (!whole) return Misuse("a window that is no whole allocation of NCCL's");
  }
  {
    std::unique_lock lock(comm.clique->mutex);
    const int64_t others = std::exchange(comm.clique->window_bytes, size_bytes);
    lock.unlock();
    if (others != -1 && others != size_bytes) Misuse("windows whose sizes differ between ranks");
  }
  if (!Take(comm, takes_.window)) return NcclResult::kUnhandledCudaError;
  comm.polls_left = polls_;
  comm.launch = [&comm, &window, memory] {
    comm.window = window = memory;
    return absl::OkStatus();
  };
  return NcclResult::kInProgress;
}

NcclResult StandInNccl::CommWindowDeregister(NcclComm handle, NcclWindow window) {
  Comm& comm = *static_cast<Comm*>(handle);
  OneThread one(*this, comm);
  if (comm.window == nullptr || comm.window != window) return Misuse("CommWindowDeregister of no window");
  comm.window = nullptr;
  std::lock_guard lock(mutex_);
  --memory_[window].windows;
  return NcclResult::kSuccess;
}

NcclResult StandInNccl::Enqueue(absl::string_view name, const void* send, void* receive, int64_t count, NcclType type,
                                NcclComm handle, cuda::StreamHandle stream) {
  Comm& comm = *static_cast<Comm*>(handle);
  const int64_t bytes = count * SizeOfType(type);
  const auto* from = static_cast<const std::byte*>(send);
  const auto* to = static_cast<const std::byte*>(receive);
  const bool in_place = from == to || to + comm.rank * bytes == from || from + comm.rank * bytes == to;
  const Call call = {.name = name,
                     .count = count,
                     .type = type,
                     .send = static_cast<const std::byte*>(send),
                     .receive = static_cast<std::byte*>(receive)};
  return Launch(comm, call, name == "AllReduceSum" ? bytes : bytes * comm.clique->size,
                absl::StrCat(count, " of type ", static_cast<int>(type), in_place ? " in place" : ""), stream);
}

NcclResult StandInNccl::Launch(Comm& comm, Call call, int64_t full_bytes, std::string text, cuda::StreamHandle stream) {
  OneThread one(*this, comm);
  if (comm.ended) return Misuse("a collective of a communicator that has ended");
  if (comm.launch != nullptr || !comm.connected) return Misuse("a collective while a call is in progress");
  {
    std::lock_guard lock(mutex_);
    calls_.push_back(absl::StrCat("rank ", comm.rank, " ", call.name, " ", text));
  }
  if (comm.used.insert({call.name, ClassOf(full_bytes)}).second && !Take(comm, takes_.first_use)) {
    return NcclResult::kUnhandledCudaError;
  }
  if (failing_rank_ == comm.rank && ++comm.collectives == failing_nth_) return NcclResult::kInternalError;
  comm.polls_left = polls_;
  comm.launch = [this, &comm, call = std::move(call), stream]() mutable {
    ++comm.running;
    call.send = cuda_on_host::HostViewOf(call.send);
    call.receive = cuda_on_host::HostViewOf(call.receive);
    for (std::vector<NcclPiece>* pieces : {&call.sent, &call.received}) {
      for (NcclPiece& piece : *pieces) piece.data = cuda_on_host::HostViewOf(piece.data);
    }
    return static_cast<cuda_on_host::Stream*>(stream)->submit([this, &comm, call] {
      Run(comm, call);
      --comm.running;
      return absl::OkStatus();
    });
  };
  return NcclResult::kInProgress;
}

// Runs in the stream's thread.
void StandInNccl::Run(Comm& comm, const Call& call) {
  Clique& clique = *comm.clique;
  if (!clique.Meet(comm.rank, call)) return;
  const int64_t bytes = call.count * SizeOfType(call.type);
  bool agreed = true;
  for (const Call& other : clique.calls) {
    agreed = agreed && other.name == call.name && other.count == call.count && other.type == call.type;
  }
  // Sets `out` to the sum over all ranks, last rank first, of the elements from byte `offset` on.
  const auto sum = [&](int64_t offset, std::byte* out) {
    std::vector<const std::byte*> inputs;
    for (int rank = clique.size - 1; rank >= 0; --rank) inputs.push_back(clique.calls[rank].send + offset);
    SumRanks(DTypeOf(call.type), inputs, out, call.count);
  };
  if (!agreed) {
    Misuse(absl::StrCat("rank ", comm.rank, " wants ", call.name, ", others something else"));
  } else if (call.name == "AllGather") {
    for (int rank = 0; rank < clique.size; ++rank) {
      std::byte* to = call.receive + rank * bytes;
      if (to != clique.calls[rank].send) std::memcpy(to, clique.calls[rank].send, bytes);
    }
  } else if (call.name == "AllToAll") {
    Exchange(clique, comm.rank);
  } else if (call.name == "ReduceScatterSum") {
    sum(comm.rank * bytes, call.receive);
  } else {
    if (comm.rank == 0) {
      clique.total.resize(bytes);
      sum(0, clique.total.data());
    }
    clique.Sync();
    std::memcpy(call.receive, clique.total.data(), bytes);
  }
  clique.Sync();
}

// Copies what the ranks send to `rank`, the last rank first.
void StandInNccl::Exchange(const Clique& clique, int rank) {
  for (int from = clique.size - 1; from >= 0; --from) {
    const NcclPiece &sent = clique.calls[from].sent[rank], &received = clique.calls[rank].received[from];
    if (sent.bytes != received.bytes) {
      Misuse(absl::StrCat("rank ", from, " sends ", sent.bytes, " bytes to rank ", rank, ", which wants ",
                          received.bytes));
    } else if (sent.bytes > 0) {
      std::memcpy(received.data, sent.data, sent.bytes);
    }
  }
}

NcclResult StandInNccl::AllToAll(absl::Span<const NcclPiece> sent, absl::Span<const NcclPiece> received,
                                 NcclComm handle, cuda::StreamHandle stream) {
  Comm& comm = *static_cast<Comm*>(handle);
  Call call = {.name = "AllToAll"};
  int64_t bytes = 0;
  for (const NcclPiece& piece : sent) bytes += piece.bytes;
  call.sent.assign(sent.begin(), sent.end());
  call.received.assign(received.begin(), received.end());
  return Launch(comm, std::move(call), bytes, absl::StrCat(bytes, " bytes"), stream);
}

NcclResult StandInNccl::AllGather(const void* send, void* receive, int64_t count, NcclType type, NcclComm comm,
                                  cuda::StreamHandle stream) {
  return Enqueue("AllGather", send, receive, count, type, comm, stream);
}
NcclResult StandInNccl::ReduceScatterSum(const void* send, void* receive, int64_t count, NcclType type, NcclComm comm,
                                         cuda::StreamHandle stream) {
  return Enqueue("ReduceScatterSum", send, receive, count, type, comm, stream);
}
NcclResult StandInNccl::AllReduceSum(const void* send, void* receive, int64_t count, NcclType type, NcclComm comm,
                                     cuda::StreamHandle stream) {
  return Enqueue("AllReduceSum", send, receive, count, type, comm, stream);
}

std::string StandInNccl::ErrorString(NcclResult result) {
  return absl::StrCat("stand-in error ", static_cast<int>(result));
}

}  // namespace shale
