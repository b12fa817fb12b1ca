#include "tests/sharding/comm/nccl/process_nccl.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "sharding/comm/sum_ranks.h"
#include "tests/kernels/cuda/host/host_view.h"
#include "tests/kernels/cuda/host/stream.h"

namespace shale {
namespace {

constexpr int kSharesGpus = 23000;  // NCCL 2.30.
constexpr int kMostRanks = 16;
constexpr int64_t kPieceBytes = int64_t{64} << 10;  // What a rank gives to the others at a time.

DType DTypeOf(NcclType type) {
  switch (type) {
    case NcclType::kFloat32: return DType::kFloat32;
    case NcclType::kFloat64: return DType::kFloat64;
    default: return DType::kInt64;
  }
}
int64_t BytesOf(int64_t count, NcclType type) {
  return type == NcclType::kBytes ? count : count * SizeOf(DTypeOf(type));
}

// The file of a group. It begins as zeros.
struct Shared {
  struct Rank {
    std::atomic<uint32_t> joined;
    std::atomic<uint64_t> passed;  // Barriers that the rank has come to.
    uint64_t host;
  };
  Rank ranks[kMostRanks];
  std::byte pieces[kMostRanks][kPieceBytes];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

std::string ValueOf(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

struct ProcessNcclCall {
  const std::byte* send = nullptr;  // Addresses for the host.
  std::byte* receive = nullptr;
  int64_t count = 0;
  NcclType type = NcclType::kBytes;
  std::vector<NcclPiece> sent, received;  // Of an AllToAll, by rank.
};

struct ProcessNccl::Comm {
  std::string path;
  Shared* shared = nullptr;
  int rank = 0, size = 0;
  bool connected = false;
  uint64_t barriers = 0;
  std::atomic<bool> aborted = false;

  // Waits for all ranks and returns true, or false once this rank is aborted.
  bool Meet() {
    shared->ranks[rank].passed.store(++barriers, std::memory_order_release);
    for (int peer = 0; peer < size; ++peer) {
      for (int tries = 0; shared->ranks[peer].passed.load(std::memory_order_acquire) < barriers; ++tries) {
        if (aborted) return false;
        if (tries < 100) {
          std::this_thread::yield();
        } else {
          std::this_thread::sleep_for(std::chrono::microseconds(50));
        }
      }
    }
    return true;
  }

  // Gives `bytes` bytes at `from` to all ranks, piece by piece, and calls `take` with the offset and the size of each
  // while the pieces of all ranks are there. Returns false if this rank is aborted.
  bool Exchange(const std::byte* from, int64_t bytes, const std::function<void(int64_t, int64_t)>& take) {
    for (int64_t offset = 0; offset < bytes; offset += kPieceBytes) {
      const int64_t piece = std::min(kPieceBytes, bytes - offset);
      std::memcpy(shared->pieces[rank], from + offset, piece);
      if (!Meet()) return false;
      take(offset, piece);
      if (!Meet()) return false;
    }
    return true;
  }

  // Gives each rank what is meant for it, as Exchange does. `sent` is what this rank sends, by rank.
  void AllToAll(const std::vector<NcclPiece>& sent, const std::vector<NcclPiece>& received) {
    std::vector<int64_t> sizes(size);
    for (int to = 0; to < size; ++to) sizes[to] = sent[to].bytes;
    std::vector<std::vector<int64_t>> all(size, sizes);  // By sender and receiver.
    const int64_t row_bytes = size * int64_t{sizeof(int64_t)};
    bool goes_on = Exchange(reinterpret_cast<const std::byte*>(sizes.data()), row_bytes, [&](int64_t, int64_t) {
      for (int from = 0; from < size; ++from) std::memcpy(all[from].data(), shared->pieces[from], row_bytes);
    });
    for (int from = 0; from < size; ++from) goes_on = goes_on && all[from][rank] == received[from].bytes;
    for (int to = 0; to < size && goes_on; ++to) {
      int64_t longest = 0;
      for (int from = 0; from < size; ++from) longest = std::max(longest, all[from][to]);
      std::vector<std::byte> padded(longest);
      if (sizes[to] > 0) std::memcpy(padded.data(), sent[to].data, sizes[to]);
      goes_on = Exchange(padded.data(), longest, [&](int64_t offset, int64_t piece) {
        for (int from = 0; from < size && to == rank; ++from) {
          const int64_t bytes = std::min(piece, all[from][to] - offset);
          if (bytes > 0)
            std::memcpy(static_cast<std::byte*>(received[from].data) + offset, shared->pieces[from], bytes);
        }
      });
    }
  }

  // Sets `to` to the sum of the first `bytes` bytes of all pieces.
  void Sum(NcclType type, std::byte* to, int64_t bytes) const {
    std::vector<const std::byte*> inputs;
    for (int peer = size - 1; peer >= 0; --peer) inputs.push_back(shared->pieces[peer]);
    SumRanks(DTypeOf(type), inputs, to, bytes / SizeOf(DTypeOf(type)));
  }
};

ProcessNccl::ProcessNccl(int version, std::string folder) : version_(version), folder_(std::move(folder)) {}

ProcessNccl::~ProcessNccl() {
  for (const auto& comm : comms_) munmap(comm->shared, sizeof(Shared));
}

const ProcessNccl::Environment& ProcessNccl::environment() {
  std::call_once(read_, [&] {
    char host[HOST_NAME_MAX + 1] = {};
    gethostname(host, sizeof(host) - 1);
    const std::string id = ValueOf("NCCL_HOSTID");
    environment_ = {.host = std::hash<std::string>()(id.empty() ? host : id),
                    .over_lo = ValueOf("NCCL_SOCKET_IFNAME") == "lo",
                    .shares_gpus = version_ >= kSharesGpus && ValueOf("NCCL_MULTI_RANK_GPU_ENABLE") == "1"};
  });
  return environment_;
}

NcclResult ProcessNccl::Fail(NcclResult result, std::string why) {
  std::lock_guard lock(mutex_);
  last_error_ = std::move(why);
  return result;
}

NcclResult ProcessNccl::GetUniqueId(NcclUniqueId& id) {
  environment();
  std::string path = folder_ + "/nccl.XXXXXX";
  const int file = mkstemp(path.data());
  if (file < 0) return Fail(NcclResult::kSystemError, "no file at " + path);
  const bool sized = ftruncate(file, sizeof(Shared)) == 0;
  close(file);
  std::copy(path.begin() + std::ssize(folder_), path.end(), id.bytes.begin());
  return sized ? NcclResult::kSuccess : Fail(NcclResult::kSystemError, "no space for " + path);
}

NcclResult ProcessNccl::CommInitRank(NcclComm& handle, int size, const NcclUniqueId& id, int rank) {
  if (size > kMostRanks) return Fail(NcclResult::kInvalidArgument, "too many ranks");
  const std::string path = folder_ + id.bytes.data();
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  void* memory = file < 0 ? MAP_FAILED : mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (file >= 0) close(file);
  if (memory == MAP_FAILED) return Fail(NcclResult::kSystemError, "cannot map " + path);
  auto comm = std::make_unique<Comm>();
  comm->path = path;
  comm->shared = static_cast<Shared*>(memory);
  comm->rank = rank;
  comm->size = size;
  Shared::Rank& mine = comm->shared->ranks[rank];
  mine.host = environment().host;
  mine.joined.store(1, std::memory_order_release);
  handle = comm.get();
  std::lock_guard lock(mutex_);
  comms_.push_back(std::move(comm));
  return NcclResult::kInProgress;
}

NcclResult ProcessNccl::Connect(const Comm& comm) {
  const auto host = [&](int rank) { return comm.shared->ranks[rank].host; };
  for (int peer = 0; peer < comm.size; ++peer) {
    if (peer == comm.rank) continue;
    if (host(peer) != host(comm.rank)) {
      if (!environment().over_lo) return Fail(NcclResult::kSystemError, "no network interface reaches another host");
    } else if (!environment().shares_gpus) {
      return Fail(NcclResult::kInvalidUsage,
                  version_ >= kSharesGpus ? std::string("Multiple Ranks are using the same GPU/Partition. Set "
                                                        "NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this configuration.")
                                          : absl::StrCat("Duplicate GPU detected : rank ", comm.rank, " and rank ",
                                                         peer, " both on CUDA device 1000"));
    }
  }
  return NcclResult::kSuccess;
}

NcclResult ProcessNccl::CommGetAsyncError(NcclComm handle, NcclResult& state) {
  Comm& comm = *static_cast<Comm*>(handle);
  state = NcclResult::kSuccess;
  if (comm.connected) return NcclResult::kSuccess;
  state = NcclResult::kInProgress;
  for (int peer = 0; peer < comm.size; ++peer) {
    if (comm.shared->ranks[peer].joined.load(std::memory_order_acquire) == 0) return NcclResult::kSuccess;
  }
  if (comm.rank == 0) unlink(comm.path.c_str());
  state = Connect(comm);
  comm.connected = state == NcclResult::kSuccess;
  return NcclResult::kSuccess;
}

NcclResult ProcessNccl::CommDestroy(NcclComm) { return NcclResult::kSuccess; }

NcclResult ProcessNccl::CommAbort(NcclComm handle) {
  static_cast<Comm*>(handle)->aborted = true;
  return NcclResult::kSuccess;
}

NcclResult ProcessNccl::Enqueue(NcclComm handle, cuda::StreamHandle stream, void (*work)(Comm&, const ProcessNcclCall&),
                                const ProcessNcclCall& call) {
  Comm& comm = *static_cast<Comm*>(handle);
  if (!comm.connected) return Fail(NcclResult::kInvalidUsage, "the ranks are not connected");
  ProcessNcclCall seen = call;
  seen.send = static_cast<const std::byte*>(cuda_on_host::HostViewOf(call.send));
  seen.receive = static_cast<std::byte*>(cuda_on_host::HostViewOf(call.receive));
  for (std::vector<NcclPiece>* pieces : {&seen.sent, &seen.received}) {
    for (NcclPiece& piece : *pieces) piece.data = cuda_on_host::HostViewOf(piece.data);
  }
  const absl::Status status = static_cast<cuda_on_host::Stream*>(stream)->submit([&comm, work, seen] {
    work(comm, seen);
    return absl::OkStatus();
  });
  return status.ok() ? NcclResult::kInProgress : Fail(NcclResult::kUnhandledCudaError, std::string(status.message()));
}

NcclResult ProcessNccl::AllGather(const void* send, void* receive, int64_t count, NcclType type, NcclComm comm,
                                  cuda::StreamHandle stream) {
  const auto work = [](Comm& comm, const ProcessNcclCall& call) {
    const int64_t bytes = BytesOf(call.count, call.type);
    comm.Exchange(call.send, bytes, [&](int64_t offset, int64_t piece) {
      for (int peer = 0; peer < comm.size; ++peer) {
        std::memcpy(call.receive + peer * bytes + offset, comm.shared->pieces[peer], piece);
      }
    });
  };
  return Enqueue(comm, stream, work,
                 {static_cast<const std::byte*>(send), static_cast<std::byte*>(receive), count, type});
}

NcclResult ProcessNccl::ReduceScatterSum(const void* send, void* receive, int64_t count, NcclType type, NcclComm comm,
                                         cuda::StreamHandle stream) {
  const auto work = [](Comm& comm, const ProcessNcclCall& call) {
    const int64_t bytes = BytesOf(call.count, call.type);
    bool goes_on = true;
    for (int owner = 0; owner < comm.size && goes_on; ++owner) {
      goes_on = comm.Exchange(call.send + owner * bytes, bytes, [&](int64_t offset, int64_t piece) {
        if (owner == comm.rank) comm.Sum(call.type, call.receive + offset, piece);
      });
    }
  };
  return Enqueue(comm, stream, work,
                 {static_cast<const std::byte*>(send), static_cast<std::byte*>(receive), count, type});
}

NcclResult ProcessNccl::AllReduceSum(const void* send, void* receive, int64_t count, NcclType type, NcclComm comm,
                                     cuda::StreamHandle stream) {
  const auto work = [](Comm& comm, const ProcessNcclCall& call) {
    comm.Exchange(call.send, BytesOf(call.count, call.type),
                  [&](int64_t offset, int64_t piece) { comm.Sum(call.type, call.receive + offset, piece); });
  };
  return Enqueue(comm, stream, work,
                 {static_cast<const std::byte*>(send), static_cast<std::byte*>(receive), count, type});
}

NcclResult ProcessNccl::AllToAll(absl::Span<const NcclPiece> sent, absl::Span<const NcclPiece> received, NcclComm comm,
                                 cuda::StreamHandle stream) {
  ProcessNcclCall call;
  call.sent.assign(sent.begin(), sent.end());
  call.received.assign(received.begin(), received.end());
  return Enqueue(
      comm, stream, [](Comm& own, const ProcessNcclCall& seen) { own.AllToAll(seen.sent, seen.received); }, call);
}

std::string ProcessNccl::ErrorString(NcclResult result) {
  return absl::StrCat("stand-in error ", static_cast<int>(result));
}

std::string ProcessNccl::LastError() {
  std::lock_guard lock(mutex_);
  return last_error_;
}

}  // namespace shale
