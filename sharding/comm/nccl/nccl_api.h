// NcclApi: the interface of the NCCL calls that we make, so that everything above it also runs without NCCL and a GPU.
// NCCL itself (nccl_library.h) implements it, and so does a stand-in for tests.
//
// Each function does what the NCCL function of the same name does. Communicators do not block: a call may return
// kInProgress and continue in a thread of NCCL. Until CommGetAsyncError says that the call is done, the caller must
// make no other call for the communicator except CommAbort, and must enqueue nothing on the collective's stream. A
// communicator is used by one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "kernels/device/cuda/handles.h"

namespace shale {

// An ncclComm_t and an ncclWindow_t.
using NcclComm = void*;
using NcclWindow = void*;

// Returns "2.30.7" for 23007, the encoding since 2.9.
inline std::string NcclVersionText(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version % 10000 / 100) + "." +
         std::to_string(version % 100);
}

// Identifies a group. One rank creates it and passes it to all others by other means.
struct NcclUniqueId {
  std::array<char, 128> bytes = {};
  bool operator==(const NcclUniqueId&) const = default;
};

// The values are those of NCCL.
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

// What goes to one rank, or comes from it.
struct NcclPiece {
  void* data = nullptr;
  int64_t bytes = 0;
};

// Thread-safe, except that a communicator is not.
class NcclApi {
 public:
  virtual ~NcclApi() = default;

  // As ncclGetVersion: 23007 for 2.30.7.
  virtual int Version() const = 0;
  virtual NcclResult GetUniqueId(NcclUniqueId& id) = 0;
  // Begins to create a communicator on the calling thread's current device, with blocking = 0 and splitShare = 0. Sets
  // `comm` unless it fails at once.
  virtual NcclResult CommInitRank(NcclComm& comm, int size, const NcclUniqueId& id, int rank) = 0;
  // Sets `state` to kInProgress, to the result of the last call, or to the error that has occurred since.
  virtual NcclResult CommGetAsyncError(NcclComm comm, NcclResult& state) = 0;
  // Destroys the communicator. Waits for its work, and until the graphs that captured it are destroyed.
  virtual NcclResult CommDestroy(NcclComm comm) = 0;
  // Ends this rank's work where it is and destroys the communicator. May be called while a call is in progress.
  virtual NcclResult CommAbort(NcclComm comm) = 0;

  // `count` counts elements: of `send` in AllGather, of `receive` in ReduceScatterSum.
  virtual NcclResult AllGather(const void* send, void* receive, int64_t count, NcclType type, NcclComm comm,
                               cuda::StreamHandle stream) = 0;
  virtual NcclResult ReduceScatterSum(const void* send, void* receive, int64_t count, NcclType type, NcclComm comm,
                                      cuda::StreamHandle stream) = 0;
  virtual NcclResult AllReduceSum(const void* send, void* receive, int64_t count, NcclType type, NcclComm comm,
                                  cuda::StreamHandle stream) = 0;

  // Sends sent[r] to rank r and receives received[r] from it: a group of Send and Recv, without those of no bytes. The
  // spans are used only during the call.
  virtual NcclResult AllToAll(absl::Span<const NcclPiece> sent, absl::Span<const NcclPiece> received, NcclComm comm,
                              cuda::StreamHandle stream) = 0;

  // Allocates memory of the current device, at a multiple of 4096, that can become a window. MemFree requires that no
  // work uses it any more.
  virtual NcclResult MemAlloc(void*& memory, int64_t size_bytes) = 0;
  virtual NcclResult MemFree(void* memory) = 0;
  // Returns whether this NCCL has CommWindowRegister and CommWindowDeregister.
  virtual bool has_windows() const = 0;
  // CommWindowRegister makes a full allocation of MemAlloc a symmetric window, on which collectives need fewer copies.
  // All ranks call it, with the same size, and wait for each other. It sets `window` when the call is done, so the
  // variable must not move until then. CommWindowDeregister waits for no other rank. Call it after the collectives of
  // all ranks, before MemFree and CommDestroy.
  virtual NcclResult CommWindowRegister(NcclComm comm, void* memory, int64_t size_bytes, NcclWindow& window) = 0;
  virtual NcclResult CommWindowDeregister(NcclComm comm, NcclWindow window) = 0;

  virtual std::string ErrorString(NcclResult result) = 0;
  // Returns NCCL's text about the last error of any communicator. May be empty.
  virtual std::string LastError() = 0;
};

}  // namespace shale
