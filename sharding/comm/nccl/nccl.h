// Communicators over NCCL, for CudaStreams.
//
// A collective is NCCL's kernel on the rank's own stream. The host waits until NCCL has put it there (some ten
// microseconds; the first collectives make connections), never for its end. NCCL does not say in which order it adds,
// and with more than two ranks it is not that of ranks; every rank gets the same bits. Sums are of f32, f64 and i64
// only: NCCL would round a sum of bf16 at each of its hops.
//
// Two communicators of a rank, one for gathering and one for reducing, are two groups. One thread per rank feeds both,
// in the same order on all ranks; NCCL_LAUNCH_ORDER_IMPLICIT=1, which LoadNccl sets, then keeps them from waiting for
// each other.
//
// Errors. NCCL reports what it finds at once or later, and a rank that does not come not at all; nor does it notice
// ranks that want different things, unless check_agreement. So a thread per group watches over what its ranks have
// launched: a collective that has begun on the GPU and not ended within the time-out, an error that NCCL has noted, and
// a GPU that has failed end the group. DeadlineExceeded names the rank that waited, the collective and its number, from
// 1. All ranks of the process are then aborted, also those of other GPUs; ranks of other processes find out by NCCL's
// own means or their time-outs. Work that an abort ends looks finished to CUDA: the group's error is that of every
// stream which it was given, from then on, and what the collectives wrote is garbage.
//
// A stream that is being captured takes none of these collectives: what watches over them would be part of the graph.
//
// Ending. Synchronize or destroy a group's streams first, and destroy graphs that hold its collectives: NCCL waits for
// them for ever. A communicator that is destroyed while its collectives run, or before the others have come as far,
// aborts the group. The last communicator of a process frees what NCCL holds for all of them. Memory given to a group
// that was aborted may be used by peers until their streams have been synchronized as well.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/device/cuda/cuda_device.h"
#include "kernels/device/cuda/runtime.h"
#include "sharding/comm/communicator.h"
#include "sharding/comm/nccl/nccl_api.h"

namespace shale {

struct NcclOptions {
  // How long to wait for the group to connect, for NCCL to launch a collective, and for one to end that has begun. 0:
  // for ever.
  double timeout_seconds = 600;
  // For debugging, where all ranks are threads of this process: before each collective they meet on the host and
  // compare what they want; InvalidArgument then says who wanted what.
  bool check_agreement = false;
  // RegisterMemory makes symmetric windows of memory, which must be NCCL's then: all of an allocation of
  // CreateNcclMemory. Else it does nothing.
  bool windows = false;
};

// Memory that can become a window, for CudaDeviceOptions.memory. What is a window when its group is aborted may stay
// allocated until the process ends.
CudaMemorySource CreateNcclMemory(std::shared_ptr<NcclApi> nccl);

// An id for one group, to be given to all its ranks, in whatever process.
absl::StatusOr<NcclUniqueId> CreateNcclUniqueId(NcclApi& nccl);

// The communicator of `rank` among `size`, on the GPU `ordinal` of this process. Waits for all other ranks of the id,
// in other threads or processes. check_agreement is refused. Keeps `nccl` and `runtime`.
absl::StatusOr<std::unique_ptr<Communicator>> CreateNcclCommunicator(std::shared_ptr<NcclApi> nccl,
                                                                     std::shared_ptr<CudaRuntime> runtime,
                                                                     const NcclUniqueId& id, int rank, int size,
                                                                     int ordinal, const NcclOptions& options = {});

// Communicators between threads of this process: rank r on the GPU ordinals[r]. Two ranks of one GPU are refused by
// most versions of NCCL.
absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateNcclGroup(std::shared_ptr<NcclApi> nccl,
                                                                           std::shared_ptr<CudaRuntime> runtime,
                                                                           absl::Span<const int> ordinals,
                                                                           const NcclOptions& options = {});

}  // namespace shale
