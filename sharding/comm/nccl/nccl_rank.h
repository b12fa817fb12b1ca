// NcclRank: owns the NCCL communicator of one rank, and follows the progress of its collectives.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device/cuda/cuda_event.h"
#include "kernels/device/cuda/runtime.h"
#include "kernels/dtype.h"
#include "sharding/comm/collective_kind.h"
#include "sharding/comm/deadline.h"
#include "sharding/comm/nccl/nccl_api.h"

namespace shale {

// Describes a collective in messages.
struct NcclCollective {
  CollectiveKind kind = CollectiveKind::kAllGather;
  DType dtype = DType::kFloat32;
  int64_t elements = 0;  // Elements of the full vector. 0 for an AllToAll.
  uint64_t number = 0;   // Counts within the group, from 1. The same on all ranks.

  std::string ToString() const;
};

// Thread-safe: used by the rank's launching thread, by the group's watchdog, and by any thread that aborts. NCCL
// requires one thread at a time for each communicator, so all calls of NCCL hold the mutex. Only the calls that destroy
// or abort the communicator wait for peers.
class NcclRank {
 public:
  struct Options {
    int rank = 0;
    int size = 1;
    int ordinal = 0;             // The GPU.
    double timeout_seconds = 0;  // 0 means none.
  };
  NcclRank(std::shared_ptr<NcclApi> nccl, std::shared_ptr<CudaRuntime> runtime, const Options& options)
      : nccl_(std::move(nccl)), runtime_(std::move(runtime)), options_(options) {}
  // REQUIRES: Destroy or Abort has been called.
  ~NcclRank() = default;
  NcclRank(const NcclRank&) = delete;
  NcclRank& operator=(const NcclRank&) = delete;

  // BeginInit begins to connect with the ranks that have the same id. Afterwards call PollInit until it returns true.
  // Neither waits for the other ranks.
  absl::Status BeginInit(const NcclUniqueId& id);
  absl::StatusOr<bool> PollInit();

  // Calls `enqueue`, which passes a collective for `stream` to NCCL, and waits until NCCL has put it on the stream. The
  // first collectives make connections and so wait for the peers. REQUIRES: the current device is the rank's.
  absl::Status Launch(const NcclCollective& collective, cuda::StreamHandle stream,
                      absl::FunctionRef<NcclResult(NcclComm)> enqueue);

  // RegisterWindow makes an allocation of NCCL a symmetric window and waits for the same call of all ranks.
  // DeregisterWindow does not wait for other ranks, so no collective of any rank may still be running. It does nothing
  // for an aborted rank. Make no other call to this rank during either, except Check and Abort.
  absl::Status RegisterWindow(void* memory, int64_t size_bytes);
  absl::Status DeregisterWindow();

  // Returns an error of NCCL, an error of the GPU, or DeadlineExceeded if a collective began on the GPU longer ago than
  // the time-out. The watchdog calls it periodically.
  absl::Status Check();

  // Returns whether all launched collectives have finished.
  bool Idle();
  // Frees the communicator. Waits until graphs that hold its collectives are destroyed. REQUIRES: the rank is idle.
  void Destroy();
  // Ends the collectives that run on the GPU and frees the communicator. Later launches fail.
  void Abort();

  int rank() const { return options_.rank; }
  int size() const { return options_.size; }

 private:
  // A launched collective, which lies between two events of its stream.
  struct Pending {
    NcclCollective collective;
    CudaEventHandle begin, end;
  };

  absl::Status Waited(const std::string& for_what) const;
  absl::Status NcclError(const std::string& during, NcclResult result);  // REQUIRES: mutex_ is held.
  absl::StatusOr<bool> Poll(const std::string& during);                  // REQUIRES: mutex_ is held.
  absl::Status Reap();                                                   // REQUIRES: mutex_ is held.
  absl::StatusOr<CudaEventHandle> TakeEvent();
  absl::Status AwaitLaunch(const std::string& during, Deadline& deadline);
  // Makes a call of NCCL that enqueues nothing on a stream, and waits until it is done.
  absl::Status CallAndWait(const std::string& during, absl::FunctionRef<NcclResult(NcclComm)> call);

  const std::shared_ptr<NcclApi> nccl_;
  const std::shared_ptr<CudaRuntime> runtime_;
  const Options options_;
  Deadline init_deadline_;
  std::mutex mutex_;
  NcclComm comm_ = nullptr;      // Null before BeginInit and after Destroy or Abort.
  NcclWindow window_ = nullptr;  // Null if none is registered.
  bool launching_ = false;       // A call may be in progress in NCCL. The calling thread watches its time-out.
  std::deque<Pending> pending_;  // In the order of launches.
  bool front_began_ = false;     // The GPU has begun the first of pending_.
  Deadline front_deadline_;      // The deadline of the first of pending_.
  std::vector<CudaEventHandle> spare_;
};

}  // namespace shale
