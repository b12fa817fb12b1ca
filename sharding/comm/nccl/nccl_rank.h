// NcclRank: one rank's communicator of NCCL, and how far its collectives have come.
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
#include "sharding/comm/nccl/nccl_api.h"
#include "sharding/comm/patience.h"

namespace shale {

// A collective, for messages.
struct NcclCollective {
  CollectiveKind kind = CollectiveKind::kAllGather;
  DType dtype = DType::kFloat32;
  int64_t elements = 0;  // Of the whole vector.
  uint64_t number = 0;   // Within the group, from 1: the same on all ranks.

  std::string ToString() const;
};

// Thread-safe: used by the rank's launching thread, by a watchdog, and by whoever aborts. NCCL wants one thread at a
// time for each communicator, so every call of NCCL is made with the mutex held; none of them waits for peers, except
// those that end the communicator.
class NcclRank {
 public:
  struct Options {
    int rank = 0;
    int size = 1;
    int ordinal = 0;             // Of its GPU.
    double timeout_seconds = 0;  // 0: none.
  };
  NcclRank(std::shared_ptr<NcclApi> nccl, std::shared_ptr<CudaRuntime> runtime, const Options& options)
      : nccl_(std::move(nccl)), runtime_(std::move(runtime)), options_(options) {}
  // Destroy or Abort has been called.
  ~NcclRank() = default;
  NcclRank(const NcclRank&) = delete;
  NcclRank& operator=(const NcclRank&) = delete;

  // Begins to connect with the ranks that have the same id; then poll until true. Never waits for them.
  absl::Status BeginInit(const NcclUniqueId& id);
  absl::StatusOr<bool> PollInit();

  // Calls `enqueue`, which gives a collective to NCCL for `stream`, and waits until NCCL has put it there; the first
  // collectives make connections, and wait for the peers then. The current device is the rank's.
  absl::Status Launch(const NcclCollective& collective, cuda::StreamHandle stream,
                      absl::FunctionRef<NcclResult(NcclComm)> enqueue);

  // Makes an allocation of NCCL's a symmetric window, which waits for the same call of all ranks; and ends that, which
  // does not: no rank's collective may still be running. Nothing else goes on meanwhile. The end of an aborted rank's
  // is nothing to do.
  absl::Status RegisterWindow(void* memory, int64_t size_bytes);
  absl::Status DeregisterWindow();

  // What has gone wrong: NCCL's error, the GPU's, or a collective that began on the GPU longer ago than the time-out.
  // For a watchdog, every now and then.
  absl::Status Check();

  // Whether all that was launched has finished.
  bool Idle();
  // Frees the communicator. The rank is idle. Waits for the end of the graphs that hold collectives of it.
  void Destroy();
  // Ends what runs on the GPU, and frees the communicator. Launches fail from now on.
  void Abort();

  int rank() const { return options_.rank; }
  int size() const { return options_.size; }

 private:
  // A collective between two events of its stream.
  struct Pending {
    NcclCollective collective;
    CudaEventHandle begin, end;
  };

  absl::Status Waited(const std::string& for_what) const;
  absl::Status NcclError(const std::string& during, NcclResult result);  // With mutex_ held.
  absl::StatusOr<bool> Poll(const std::string& during);                  // With mutex_ held.
  absl::Status Reap();                                                   // With mutex_ held.
  absl::StatusOr<CudaEventHandle> TakeEvent();
  absl::Status AwaitLaunch(const std::string& during, Patience& patience);
  // A call that only has to be waited for.
  absl::Status CallAndWait(const std::string& during, absl::FunctionRef<NcclResult(NcclComm)> call);

  const std::shared_ptr<NcclApi> nccl_;
  const std::shared_ptr<CudaRuntime> runtime_;
  const Options options_;
  Patience init_patience_;
  std::mutex mutex_;
  NcclComm comm_ = nullptr;      // Null before BeginInit and from the end on.
  NcclWindow window_ = nullptr;  // Null: none is registered.
  bool launching_ = false;       // NCCL may be at work on a launch, which its thread watches over.
  std::deque<Pending> pending_;  // In the order of launches.
  bool front_began_ = false;     // The GPU has come to the first of them.
  Patience front_patience_;      // With that one.
  std::vector<CudaEventHandle> spare_;
};

}  // namespace shale
