// NcclApi: the calls of NCCL that we make, so that everything above them also runs where there is neither NCCL nor a
// GPU. Behind it: NCCL itself (nccl_library.h), or a stand-in of the tests.
//
// A call is NCCL's of the same name, with its meaning. Communicators do not block: a call may answer kInProgress and go
// on in a thread of NCCL's, and until CommGetAsyncError says that it is done, nothing else may be asked of the
// communicator (but CommAbort), and nothing enqueued on the collective's stream. A communicator belongs to one thread
// at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/device/cuda/handles.h"

namespace shale {

// A ncclComm_t, and a ncclWindow_t.
using NcclComm = void*;
using NcclWindow = void*;

// What the ranks of a group know one another by: made by one of them, given to all by other means.
struct NcclUniqueId {
  std::array<char, 128> bytes = {};
  bool operator==(const NcclUniqueId&) const = default;
};

// The values are NCCL's.
enum class NcclResult : uint8_t {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

enum class NcclType : uint8_t { kBytes = 0, kInt64 = 4, kFloat32 = 7, kFloat64 = 8 };

// Thread-safe, except that a communicator is not.
class NcclApi {
 public:
  virtual ~NcclApi() = default;

  virtual NcclResult GetUniqueId(NcclUniqueId& id) = 0;
  // On the calling thread's current device, with blocking = 0 and splitShare = 0. Sets `comm` unless it fails at once.
  virtual NcclResult CommInitRank(NcclComm& comm, int size, const NcclUniqueId& id, int rank) = 0;
  // What becomes of the communicator: kInProgress, or how the last call ended, or what has gone wrong since.
  virtual NcclResult CommGetAsyncError(NcclComm comm, NcclResult& state) = 0;
  // Waits for the communicator's work, and for the end of the graphs that captured it.
  virtual NcclResult CommDestroy(NcclComm comm) = 0;
  // Lets this rank's work end where it is, and destroys. Also while a call is in progress.
  virtual NcclResult CommAbort(NcclComm comm) = 0;

  // `count` is of elements: of `send` in AllGather, of `receive` in ReduceScatterSum.
  virtual NcclResult AllGather(const void* send, void* receive, int64_t count, NcclType type, NcclComm comm,
                               cuda::StreamHandle stream) = 0;
  virtual NcclResult ReduceScatterSum(const void* send, void* receive, int64_t count, NcclType type, NcclComm comm,
                                      cuda::StreamHandle stream) = 0;
  virtual NcclResult AllReduceSum(const void* send, void* receive, int64_t count, NcclType type, NcclComm comm,
                                  cuda::StreamHandle stream) = 0;

  // Memory of the current device, at a multiple of 4096, that can become a window. Nothing runs that uses it when
  // it is freed.
  virtual NcclResult MemAlloc(void*& memory, int64_t size_bytes) = 0;
  virtual NcclResult MemFree(void* memory) = 0;
  // Whether the next two may be called.
  virtual bool has_windows() const = 0;
  // Makes all of an allocation of MemAlloc, of one size on all ranks, a symmetric window: collectives on it need fewer
  // copies. A call of all ranks, which wait for each other. Sets `window`, which has to stay where it is, when it is
  // done. Its end waits for nobody; it comes after all ranks' collectives, and before MemFree and CommDestroy.
  virtual NcclResult CommWindowRegister(NcclComm comm, void* memory, int64_t size_bytes, NcclWindow& window) = 0;
  virtual NcclResult CommWindowDeregister(NcclComm comm, NcclWindow window) = 0;

  virtual std::string ErrorString(NcclResult result) = 0;
  // NCCL's words about the last error, of whichever communicator. May be empty.
  virtual std::string LastError() = 0;
};

}  // namespace shale
