// NcclGroup: the ranks of a group that live in this process.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "kernels/device/cuda/cuda_stream.h"
#include "sharding/comm/nccl/nccl_rank.h"
#include "sharding/comm/rendezvous.h"

namespace shale {

// Why a group is dead, if it is. Outlives the group in the streams that ran its collectives.
class NcclGroupStatus : public StreamGuard {
 public:
  absl::Status status() const override;
  // The first error stays; false: it was not the first.
  bool Set(absl::Status error);

 private:
  std::atomic<bool> failed_ = false;
  mutable std::mutex mutex_;
  absl::Status error_;  // Guarded by mutex_.
};

struct NcclGroupChecks {
  double timeout_seconds = 0;  // 0: none.
  bool agreement = false;      // The ranks are all of this process, and compare what they want before each collective.
};

// Owns the ranks; owned by their communicators together. A thread of its own watches over all of them. Thread-safe.
class NcclGroup {
 public:
  // Waits until NCCL has connected the ranks, which must have begun, with all others. If that fails for one, all are
  // aborted.
  static absl::StatusOr<std::shared_ptr<NcclGroup>> Create(std::vector<std::unique_ptr<NcclRank>> ranks,
                                                           const NcclGroupChecks& checks);
  ~NcclGroup();

  // `index`: of the rank among those of this process.
  NcclRank& rank(int index) { return *ranks_[index]; }

  // Gives `collective` its number and lets `enqueue` pass it to NCCL (NcclRank::Launch), with all that guards it. Any
  // error is the group's.
  absl::Status Launch(int index, NcclCollective collective, CudaStream& stream,
                      absl::FunctionRef<NcclResult(NcclComm, cuda::StreamHandle)> enqueue);

  // Ends every collective of these ranks, and refuses all further ones. Unless it is dead already.
  void Fail(absl::Status reason);

  // The rank makes no further calls. What the others launched and it did not is aborted; what all have launched goes
  // on.
  void Leave(int index);

 private:
  NcclGroup(std::vector<std::unique_ptr<NcclRank>> ranks, const NcclGroupChecks& checks);
  absl::Status Connect();
  absl::Status Admit(int index, NcclCollective& collective);
  absl::Status WithoutThem(int index) const;
  void WatchOver();

  const std::vector<std::unique_ptr<NcclRank>> ranks_;
  const std::shared_ptr<NcclGroupStatus> status_ = std::make_shared<NcclGroupStatus>();
  const NcclGroupChecks checks_;
  std::unique_ptr<Rendezvous> rendezvous_;  // Null: agreement is not checked.

  std::mutex mutex_;
  std::vector<uint64_t> launched_;  // Collectives, by index. Guarded by mutex_, as are the next.
  int left_ = -1;                   // The rank that left first, after its launched_ collectives; -1: none has.
  bool done_ = false;               // The watchdog is to end.
  std::condition_variable wake_;
  std::thread watchdog_;
};

}  // namespace shale
