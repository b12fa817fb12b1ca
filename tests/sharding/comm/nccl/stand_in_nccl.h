// StandInNccl: NCCL where there is none, for streams of cuda_on_host::StandInRuntime.
//
// Collectives are carried out, as work of the ranks' streams that waits for the peers'. What NCCL leaves undefined is
// done as badly as it may be: a launch is put on its stream only when its caller has asked often enough whether it is
// done; a rank that does not come is waited for until this rank is aborted, and only this one; sums are formed from the
// last rank to the first.
//
// Misuse, which misuse() keeps: a communicator that was destroyed, or is used by two threads at once, or while a call
// is in progress; collectives that differ between ranks; destroying before collectives have ended, or windows; windows
// of other memory than NCCL's, of a part of it, or of sizes that differ between ranks; freeing a window's memory.
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
  // CommGetAsyncError answers kInProgress so many times after each call.
  explicit StandInNccl(int polls = 3);
  // Where MemAlloc finds memory. Borrowed.
  void set_runtime(CudaRuntime* runtime) { runtime_ = runtime; }
  ~StandInNccl() override;

  // Failures to order, for all communicators of a rank: connecting ends in an error, the n-th collective (from 1) is
  // refused, an error is noted from now on.
  void FailInit(int rank) { failing_init_ = rank; }
  void FailCollective(int rank, int nth);
  void NoteError(int rank) { failing_ = rank; }

  // As an NCCL before 2.27.
  void TakeWindowsAway() { has_windows_ = false; }

  // What was asked for, such as "rank 0 AllGather 12 of type 0 in place".
  std::vector<std::string> calls() const;
  std::vector<std::string> misuse() const;
  // Communicators that were aborted, and those that were neither aborted nor destroyed.
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
    const std::byte* send = nullptr;  // Where the host reaches it, like the next.
    std::byte* receive = nullptr;
  };
  struct Clique;
  struct Comm;
  class OneThread;

  NcclResult Misuse(absl::string_view what);
  NcclResult Enqueue(absl::string_view name, const void* send, void* receive, int64_t count, NcclType type,
                     NcclComm handle, cuda::StreamHandle stream);
  NcclResult End(Comm& comm);
  void Run(Comm& comm, const Call& call);

  struct Memory {
    void* allocation = nullptr;  // In which it lies.
    int64_t bytes = 0;
    int windows = 0;
  };

  const int polls_;
  CudaRuntime* runtime_ = nullptr;
  bool has_windows_ = true;
  std::map<void*, Memory> memory_;  // Guarded by mutex_.
  std::atomic<int> failing_init_ = -1, failing_ = -1, failing_rank_ = -1, failing_nth_ = 0;
  std::atomic<int> aborted_ = 0, live_ = 0;
  mutable std::mutex mutex_;
  std::vector<std::string> calls_, misuse_;
  std::vector<std::unique_ptr<Clique>> cliques_;  // Kept, so that a stale handle is known as one; like the next.
  std::vector<std::unique_ptr<Comm>> comms_;
};

}  // namespace shale
