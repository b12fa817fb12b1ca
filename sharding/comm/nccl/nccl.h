// Communicators that use NCCL, for CudaStreams.
//
// A collective is a kernel of NCCL on the rank's own stream. The host waits until NCCL has put it there (about ten
// microseconds; the first collectives also make connections), but never for its end. NCCL does not specify the order in
// which it adds, and with more than two ranks it is not the order of ranks. Every rank gets the same bits. Sums take
// f32, f64 and i64 only: NCCL would round a sum of bf16 at each of its hops.
//
// Two communicators of a rank, one for gathering and one for reducing, are two groups. One thread per rank enqueues on
// both, in the same order on all ranks. NCCL_LAUNCH_ORDER_IMPLICIT=1, which LoadNccl sets, then keeps the two groups
// from waiting for each other.
//
// Errors. NCCL reports the errors that it notices, at once or later. It does not notice a rank that never comes, nor
// ranks that want different collectives (see check_agreement). So a watchdog thread per group watches the collectives
// that its ranks have launched. The group fails if a collective has begun on the GPU and not ended within the time-out,
// if NCCL has noticed an error, or if a GPU has failed. DeadlineExceeded names the rank that waited, the collective and
// its number, from 1. All ranks of the group in this process are then aborted, also those on other GPUs. Ranks of other
// processes notice by NCCL's own means or by their time-outs. Work that an abort ends looks finished to CUDA. So, from
// then on, every stream that the group was used on has the group's error, and the results of its collectives are
// garbage.
//
// A stream that is being captured must not take these collectives, because the events that the watchdog looks at would
// become part of the graph.
//
// Shutdown. First synchronize or destroy a group's streams, and destroy graphs that hold its collectives, because NCCL
// waits for them without limit. Destroying a communicator aborts the group if its collectives still run, or if other
// ranks have launched more collectives than it has. After an abort, peers may still access memory that was given to the
// group, until their streams have been synchronized as well. The last communicator of a process frees what NCCL holds
// for all of them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/device/cuda/cuda_device.h"
#include "kernels/device/cuda/runtime.h"
#include "sharding/comm/communicator.h"
#include "sharding/comm/nccl/nccl_api.h"
#include "sharding/comm/store.h"

namespace shale {

struct NcclOptions {
  // How long to wait for the group to connect, for NCCL to launch a collective, and for a collective that has begun to
  // end. 0: forever.
  double timeout_seconds = 600;
  // For debugging. Requires that all ranks are threads of this process. Before each collective the ranks then meet on
  // the host and compare what they want. If they differ, InvalidArgument says which rank wanted what.
  bool check_agreement = false;
  // If true, RegisterMemory makes its memory a symmetric window; the memory must then be a full allocation of
  // CreateNcclMemory. If false, RegisterMemory does nothing.
  bool windows = false;
};

// Returns a source of memory that can become a window, for CudaDeviceOptions.memory. Memory that is a window when its
// group is aborted may stay allocated until the process ends.
CudaMemorySource CreateNcclMemory(std::shared_ptr<NcclApi> nccl);

// A group of which this process holds some ranks, and others the rest.
struct NcclMembers {
  std::string name;           // Names the group in the store, where no other group may have this name.
  int size = 0;               // The number of ranks in all processes.
  std::vector<int> ranks;     // The ranks that this process holds, ascending.
  std::vector<int> ordinals;  // Their GPUs, in the numbering of this process.
};

// Creates the communicators of the ranks that this process holds, in their order, and waits for those of the other
// processes: each makes this call. The process of rank 0 puts NCCL's id of the group into the store, from which the
// others take it. Returns InvalidArgument if check_agreement is set, and DeadlineExceeded if a process does not come.
// Shares ownership of `nccl` and `runtime`, and uses `store` only during the call.
absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateNcclGroup(std::shared_ptr<NcclApi> nccl,
                                                                           std::shared_ptr<CudaRuntime> runtime,
                                                                           Store& store, const NcclMembers& members,
                                                                           const NcclOptions& options = {});

// Creates one communicator per rank, in rank order, between threads of this process. Rank r is on the GPU ordinals[r].
// Most versions of NCCL refuse two ranks on one GPU. Shares ownership of `nccl` and `runtime`.
absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateNcclGroup(std::shared_ptr<NcclApi> nccl,
                                                                           std::shared_ptr<CudaRuntime> runtime,
                                                                           absl::Span<const int> ordinals,
                                                                           const NcclOptions& options = {});

}  // namespace shale
