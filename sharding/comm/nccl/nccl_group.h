// NcclGroup: owns and watches the ranks of a group that live in this process.
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

// Holds the first error of a group. Guards the streams that ran its collectives, and so may outlive the group.
class NcclGroupStatus : public StreamGuard {
 public:
  absl::Status status() const override;
  // Sets the error and returns true, or returns false if there is one already.
  bool Set(absl::Status error);

 private:
  std::atomic<bool> failed_ = false;
  mutable std::mutex mutex_;
  absl::Status error_;  // Guarded by mutex_.
};

struct NcclGroupChecks {
  double timeout_seconds = 0;  // 0 means none.
  bool agreement = false;      // The ranks, all in this process, compare what they want before each collective.
};

// Owns the ranks. Their communicators share ownership of the group. A watchdog thread checks all ranks. An `index` is
// the index of a rank among those of this process. Thread-safe.
class NcclGroup {
 public:
  // Waits until NCCL has connected the ranks with all other ranks. If that fails for one rank, aborts all. REQUIRES:
  // BeginInit has succeeded for all `ranks`.
  static absl::StatusOr<std::shared_ptr<NcclGroup>> Create(std::vector<std::unique_ptr<NcclRank>> ranks,
                                                           const NcclGroupChecks& checks);
  ~NcclGroup();

  NcclRank& rank(int index) { return *ranks_[index]; }

  // Numbers `collective`, makes the group guard `stream`, and launches the collective with `enqueue`
  // (NcclRank::Launch). An error of the launch fails the group. `exchange` has the pieces of an AllToAll.
  absl::Status Launch(int index, NcclCollective collective, CudaStream& stream,
                      absl::FunctionRef<NcclResult(NcclComm, cuda::StreamHandle)> enqueue,
                      std::shared_ptr<const Rendezvous::Exchange> exchange = nullptr);

  // Aborts every collective of these ranks and makes all later ones fail. Does nothing if the group has failed already.
  void Fail(absl::Status reason);

  // Call when the rank makes no further calls. Frees its NCCL communicator. Fails the group if the rank's collectives
  // have not finished, or as soon as another rank has launched a collective that this rank did not. Collectives that
  // all ranks have launched continue.
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
  std::unique_ptr<Rendezvous> rendezvous_;  // Null if agreement is not checked.

  std::mutex mutex_;
  std::vector<uint64_t> launched_;  // Collectives launched so far, by index. Guarded by mutex_, like left_ and done_.
  int left_ = -1;                   // Index of the rank that left after the fewest collectives. -1: none has left.
  bool done_ = false;               // Tells the watchdog to end.
  std::condition_variable wake_;
  std::thread watchdog_;
};

}  // namespace shale
