// ProcessNccl stands in for NCCL between processes, or threads that play processes, which have one GPU, on streams of
// cuda_on_host::StandInRuntime.
//
// The ranks of a group exchange their data through a file that all of them map. As NCCL does, it refuses ranks that
// have their host and their GPU in common, and reads its environment once, at its first call:
// - NCCL_HOSTID replaces the name of the host. Ranks on different hosts reach each other only over
// NCCL_SOCKET_IFNAME=lo:
//   this host has no other network. Without it, connecting fails.
// - NCCL_MULTI_RANK_GPU_ENABLE=1 allows ranks to share a GPU. Versions before 2.30 do not know it.
// A rank that does not come, or whose process has died, lets the others wait until they are aborted. Sums are formed
// from the last rank to the first. It has no windows.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "sharding/comm/nccl/nccl_api.h"

namespace shale {

class ProcessNccl final : public NcclApi {
 public:
  // Files of groups are made in `folder`, and removed when all ranks have come.
  ProcessNccl(int version, std::string folder);
  ~ProcessNccl() override;

  int Version() const override { return version_; }
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
  NcclResult MemAlloc(void*& /*memory*/, int64_t /*size_bytes*/) override { return NcclResult::kInvalidUsage; }
  NcclResult MemFree(void* /*memory*/) override { return NcclResult::kInvalidUsage; }
  bool has_windows() const override { return false; }
  NcclResult CommWindowRegister(NcclComm, void*, int64_t, NcclWindow&) override { return NcclResult::kInvalidUsage; }
  NcclResult CommWindowDeregister(NcclComm, NcclWindow) override { return NcclResult::kInvalidUsage; }
  std::string ErrorString(NcclResult result) override;
  std::string LastError() override;

 private:
  // What NCCL takes from its environment.
  struct Environment {
    uint64_t host = 0;
    bool over_lo = false;
    bool shares_gpus = false;
  };
  struct Comm;

  const Environment& environment();
  // Returns the state of a communicator whose ranks have all come.
  NcclResult Connect(const Comm& comm);
  NcclResult Fail(NcclResult result, std::string why);
  // Runs `work` on the stream.
  NcclResult Enqueue(NcclComm comm, cuda::StreamHandle stream, void (*work)(Comm&, const struct ProcessNcclCall&),
                     const struct ProcessNcclCall& call);

  const int version_;
  const std::string folder_;
  std::once_flag read_;
  Environment environment_;
  std::mutex mutex_;  // Guards the next two fields.
  std::string last_error_;
  std::vector<std::unique_ptr<Comm>> comms_;  // Never shrinks: an aborted collective may still see its communicator.
};

}  // namespace shale
