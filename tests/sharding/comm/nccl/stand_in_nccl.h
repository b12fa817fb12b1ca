// StandInNccl stands in for NCCL where there is none, on streams of cuda_on_host::StandInRuntime.
//
// Collectives run as work on the ranks' streams, which waits for the work of the peers. Where NCCL leaves something
// undefined, the stand-in does its worst. It can be told to take memory at the first use of each kind and size class of
// collective, and for windows. A launch is put on its stream only when its caller has asked often enough
// whether it is done. The wait for a rank that does not come ends only when the waiting rank itself is aborted. Sums
// are formed from the last rank to the first.
//
// misuse() lists each misuse: using a communicator after it was destroyed, in two threads at once, or while a call is
// in progress; collectives that differ between ranks; destroying a communicator before its collectives or windows have
// ended; windows on memory that is not NCCL's, on a part of it, or of sizes that differ between ranks; freeing the
// memory of a window.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/device/cuda/runtime.h"
#include "sharding/comm/nccl/nccl_api.h"

namespace shale {

class StandInNccl final : public NcclApi {
 public:
  // CommGetAsyncError answers kInProgress `polls` times after each call.
  explicit StandInNccl(int polls = 3);
  // Sets where MemAlloc takes memory from. Borrows `runtime`.
  void set_runtime(CudaRuntime* runtime) { runtime_ = runtime; }
  ~StandInNccl() override;

  // Order a failure of all communicators of a rank: connecting ends in an error, the n-th collective (from 1) is
  // refused, or an error is noted from now on.
  void FailInit(int rank) { failing_init_ = rank; }
  void FailCollective(int rank, int nth);
  void NoteError(int rank) { failing_ = rank; }

  // Makes each communicator take `first_use` bytes of its GPU when it first runs a kind of collective in a size class,
  // and `window` bytes for a window. It frees them when it ends. Classes are those of the full vector's bytes: up to
  // kSmallBytes, up to kMediumBytes, and larger. NCCL's are larger. REQUIRES: set_runtime
  struct Takes {
    int64_t first_use = 0, window = 0;
  };
  static constexpr int64_t kSmallBytes = 512, kMediumBytes = 12 << 10;
  void set_takes(const Takes& takes) { takes_ = takes; }

  // Makes this an NCCL before 2.27, which has no windows.
  void TakeWindowsAway() { has_windows_ = false; }

  int Version() const override { return has_windows_ ? 22809 : 22602; }

  // Returns the collectives that were asked for, such as "rank 0 AllGather 12 of type 0 in place".
  std::vector<std::string> calls() const;
  std::vector<std::string> misuse() const;
  // Return how many communicators were aborted, and how many were neither aborted nor destroyed.
  int aborted() const { return aborted_; }
  int live() const { return live_; }

  NcclResult GetUniqueId(NcclUniqueId& id) override;
  NcclResult CommInitRank(NcclComm& comm, int size, const NcclUniqueId& id, int rank) override;
  NcclResult CommGetAsyncError(NcclComm comm, NcclResult& state) override;
  NcclResult CommDestroy(NcclComm comm) override;
  NcclResult CommAbort(NcclComm comm) override;
  NcclResult AllGather(const void* send, void* receive, int64_t count, NcclType type, NcclComm comm,
                       cuda::StreamHandle stream) override;
  NcclResult ReduceScatterSum(const void* send, void* receive, int64_t count, NcclType type, NcclComm comm,
                              cuda::StreamHandle stream) override;
  NcclResult AllReduceSum(const void* send, void* receive, int64_t count, NcclType type, NcclComm comm,
                          cuda::StreamHandle stream) override;
  NcclResult AllToAll(absl::Span<const NcclPiece> sent, absl::Span<const NcclPiece> received, NcclComm comm,
                      cuda::StreamHandle stream) override;
  NcclResult MemAlloc(void*& memory, int64_t size_bytes) override;
  NcclResult MemFree(void* memory) override;
  NcclResult CommWindowRegister(NcclComm comm, void* memory, int64_t size_bytes, NcclWindow& window) override;
  bool has_windows() const override { return has_windows_; }
  NcclResult CommWindowDeregister(NcclComm comm, NcclWindow window) override;
  std::string ErrorString(NcclResult result) override;
  std::string LastError() override { return "as ordered"; }

 private:
  struct Call {
    absl::string_view name;
    int64_t count = 0;
    NcclType type = NcclType::kBytes;
    const std::byte* send = nullptr;  // An address for the host while it runs, like all others.
    std::byte* receive = nullptr;
    std::vector<NcclPiece> sent, received;  // Of an AllToAll, by rank.
  };
  struct Clique;
  struct Comm;
  class OneThread;

  NcclResult Misuse(absl::string_view what);
  NcclResult Enqueue(absl::string_view name, const void* send, void* receive, int64_t count, NcclType type,
                     NcclComm handle, cuda::StreamHandle stream);
  // Begins the launch of `call`, whose full vector has `full_bytes`. `text` is its line in calls().
  NcclResult Launch(Comm& comm, Call call, int64_t full_bytes, std::string text, cuda::StreamHandle stream);
  void Exchange(const Clique& clique, int rank);
  NcclResult End(Comm& comm);
  // Takes memory for `comm`. Returns false if there is none.
  bool Take(Comm& comm, int64_t bytes);
  void Run(Comm& comm, const Call& call);

  struct Memory {
    void* allocation = nullptr;  // The allocation that it lies in.
    int64_t bytes = 0;
    int windows = 0;
  };

  const int polls_;
  CudaRuntime* runtime_ = nullptr;
  bool has_windows_ = true;
  Takes takes_;
  std::map<void*, Memory> memory_;  // Guarded by mutex_.
  std::atomic<int> failing_init_ = -1, failing_ = -1, failing_rank_ = -1, failing_nth_ = 0;
  std::atomic<int> aborted_ = 0, live_ = 0;
  mutable std::mutex mutex_;
  std::vector<std::string> calls_, misuse_;
  std::vector<std::unique_ptr<Clique>> cliques_;  // Never shrinks, so that stale handles are recognized; like comms_.
  std::vector<std::unique_ptr<Comm>> comms_;
};

}  // namespace shale
