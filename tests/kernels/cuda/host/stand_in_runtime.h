// StandInRuntime: a CUDA runtime that needs no GPU. Streams are threads that run copies and our kernels (compiled as
// C++) in FIFO order. Host code cannot touch device memory. What would cause silent corruption or an unexplained stall
// on a GPU is an error here.
//
// The following are misuse. The call returns InvalidArgument, and misuse() keeps the message for callers that drop the
// Status:
// - a copy, memset or written word that does not lie entirely in one allocation; a copy whose source and destination
//   overlap; host memory that is not pinned, unless allowed;
// - memory freed twice, by an address inside it, or while enqueued work still uses it (CUDA would wait for the device);
// - use of a destroyed stream or event, or of the default stream; a kernel for a device that is not the current one;
// - elapsed time asked of an event that records no time or has not been reached;
// - a capture that is not ended by the thread and on the stream that began it, that has a stream which was not joined,
//   or that waits for an event recorded outside it;
// - a call that a thread must not make while it captures; a wait for a captured event on the host, or after its capture
//   has ended;
// - use of a destroyed graph; freeing memory that a graph uses; a copy of a graph that is redirected to another kind of
//   memory;
// - after ForbidTaking: an allocation, the end of a capture, and a module that is loaded.
//
// A missing wait between streams, or in a graph, is a data race for ThreadSanitizer, because streams are built on
// CpuStream.
//
// Tests can make the n-th allocation or the n-th kernel from now fail. A kernel fails late: its stream accepts further
// work until the kernel runs. Then some later call reports the error, and so does every call after it for that device.
// Enqueued work that has not run yet is skipped. A kernel in which Execution finds an error (README.md) fails in the
// same way.
//
// The device's clock is not the host's: it started later and runs a little faster.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/device/cuda/runtime.h"
#include "tests/kernels/cuda/host/block_turns.h"
#include "tests/kernels/cuda/host/stand_in_memory.h"
#include "tests/kernels/cuda/host/stream.h"

namespace shale::cuda_on_host {

struct StandInCapture;
struct StandInEvent;
struct StandInGraph;
struct StandInStream;
struct StandInWork;

struct StandInOptions {
  int devices = 1;
  int compute_major = 9, compute_minor = 0;
  int64_t memory_bytes = int64_t{1} << 30;  // Memory of each device.
  bool allow_pageable = false;              // Allows copies from and to host memory that is not pinned.
  bool stream_writes = true;                // Streams can write words (WriteWordAsync).
  int64_t graph_bytes = 0;                  // Memory that each graph takes until it is destroyed.
  ThreadOrder order = ThreadOrder::kTurns;
  bool interleave = false;  // Kernels of different streams run block by block (BlockTurns).
};

// Thread-safe, except that each stream is used by one thread at a time.
class StandInRuntime final : public CudaRuntime {
 public:
  explicit StandInRuntime(const StandInOptions& options = {});
  // Waits for all work and frees everything.
  ~StandInRuntime() override;

  // FailAllocation makes the n-th Malloc or MallocHost from now run out of memory. FailKernel makes the n-th kernel
  // from now fail with an illegal memory access.
  void FailAllocation(int nth) { allocations_left_ = nth; }
  void FailKernel(int nth) { kernels_left_ = nth; }

  // From now on, whatever takes memory of a device or pinned memory is misuse. Tests call it when a run has all that it
  // needs.
  void ForbidTaking() { forbids_taking_ = true; }
  // Stands for a library that loads the code of a kernel. CUDA may allocate for it and wait for the device.
  absl::Status LoadModule(absl::string_view name);
  // Returns the messages of all misuse so far.
  std::vector<std::string> misuse() const;
  // Returns OK if everything has been freed and destroyed. Otherwise the error counts what is left.
  absl::Status CheckAllReleased() const;
  CudaStreamPriority PriorityOf(cuda::StreamHandle stream) const;
  // Returns the priorities of a graph's work, by the streams of its capture in the order in which they joined it.
  std::vector<CudaStreamPriority> PrioritiesOf(cuda::GraphHandle graph) const;
  // Returns the number of graph launches so far.
  int64_t graph_launches() const { return graph_launches_; }

  absl::StatusOr<int> DeviceCount() override;
  absl::Status SetDevice(int ordinal) override;
  absl::StatusOr<CudaDeviceProperties> Properties(int ordinal) override;
  absl::StatusOr<int64_t> FreeBytes() override;
  absl::Status SynchronizeDevice() override;
  absl::Status EnablePeerAccess(int peer) override;
  absl::StatusOr<void*> Malloc(int64_t size_bytes) override;
  absl::Status Free(void* memory) override;
  absl::StatusOr<void*> MallocHost(int64_t size_bytes) override;
  absl::Status FreeHost(void* memory) override;
  absl::StatusOr<cuda::StreamHandle> CreateStream(CudaStreamPriority priority) override;
  absl::Status DestroyStream(cuda::StreamHandle stream) override;
  absl::Status SynchronizeStream(cuda::StreamHandle stream) override;
  absl::StatusOr<cuda::EventHandle> CreateEvent(CudaEventKind kind) override;
  absl::Status DestroyEvent(cuda::EventHandle event) override;
  absl::Status RecordEvent(cuda::EventHandle event, cuda::StreamHandle stream) override;
  absl::StatusOr<bool> EventReached(cuda::EventHandle event) override;
  absl::Status SynchronizeEvent(cuda::EventHandle event) override;
  absl::StatusOr<double> ElapsedMilliseconds(cuda::EventHandle begin, cuda::EventHandle end) override;
  absl::Status WaitEvent(cuda::StreamHandle stream, cuda::EventHandle event) override;
  absl::Status CopyAsync(void* to, const void* from, int64_t size_bytes, cuda::StreamHandle stream) override;
  absl::Status SetBytesAsync(void* to, uint8_t value, int64_t size_bytes, cuda::StreamHandle stream) override;
  absl::Status WriteWordAsync(uint32_t* to, uint32_t value, cuda::StreamHandle stream) override;
  absl::Status LaunchHostFunction(void (*function)(void*), void* argument, cuda::StreamHandle stream) override;
  absl::Status BeginCapture(cuda::StreamHandle stream) override;
  absl::StatusOr<bool> IsCapturing(cuda::StreamHandle stream) override;
  absl::StatusOr<cuda::GraphHandle> EndCapture(cuda::StreamHandle stream) override;
  absl::StatusOr<cuda::NodeHandle> LastCaptured(cuda::StreamHandle stream) override;
  absl::Status SetGraphCopy(cuda::GraphHandle graph, cuda::NodeHandle copy, void* to, const void* from,
                            int64_t size_bytes) override;
  absl::Status LaunchGraph(cuda::GraphHandle graph, cuda::StreamHandle stream) override;
  absl::Status DestroyGraph(cuda::GraphHandle graph) override;
  absl::Status TakeLastError() override;

 private:
  // One GPU. Its first error stays.
  struct Gpu {
    std::atomic<bool> dead = false;
    absl::Status error;           // Written once, before `dead`. Guarded by mutex_.
    int64_t allocated_bytes = 0;  // Guarded by mutex_.
  };
  // The bytes that a copy, memset or written word accesses.
  struct Bytes {
    std::byte* view = nullptr;
    Allocation* allocation = nullptr;  // Null for pageable host memory.
  };

  int current() const;
  absl::Status ErrorOf(const char* call, int ordinal);
  absl::Status Misuse(const char* call, absl::string_view what);
  absl::Status CheckStream(const char* call, cuda::StreamHandle stream);
  absl::Status CheckEvent(const char* call, cuda::EventHandle event);
  absl::StatusOr<Bytes> BytesAt(const char* call, const void* address, int64_t size_bytes);
  absl::StatusOr<void*> Allocate(const char* call, MemoryKind kind, int64_t size_bytes);
  absl::Status Deallocate(const char* call, MemoryKind kind, void* memory);
  // If this thread is capturing, breaks its capture and returns misuse. Called by functions that a capturing thread
  // must not call.
  absl::Status CheckNoCapture(const char* call);
  // Returns misuse if nothing may be taken any more.
  absl::Status CheckTaking(const char* call, absl::string_view what);
  // Like CheckNoCapture, but also returns misuse if the event was recorded in a capture. Called by functions that query
  // an event on the host or wait for it there.
  absl::Status CheckOutside(const char* call, cuda::EventHandle event);
  absl::Status OpenStream(StandInStream& stream, int ordinal, const std::string& name);
  // Appends work to a stream, or to the stream's capture. If the work fails when it runs, the device fails.
  absl::Status Submit(StandInStream& stream, StandInWork work);
  absl::Status Run(StandInStream& stream, const StandInWork& work);
  absl::Status SubmitKernel(StandInStream& stream, std::function<absl::Status()> kernel);
  absl::StatusOr<StandInWork> CopyWork(const char* call, void* to, const void* from, int64_t size_bytes);
  // Enqueues a record on a stream; `event` may be null. Returns the count that stream.reached has when it is reached.
  absl::StatusOr<uint64_t> Reach(StandInStream& stream, StandInEvent* event);
  absl::Status Await(StandInStream& stream, StandInStream& awaited, uint64_t record);
  StandInCapture* CaptureOf(uint64_t number);
  absl::Status CaptureWait(StandInStream& stream, const StandInEvent& event);
  absl::Status CheckGraph(const char* call, cuda::GraphHandle graph);
  // Removes a capture from captures_ and returns it.
  std::unique_ptr<StandInCapture> Take(const StandInCapture& capture);
  void Kill(Gpu& gpu, absl::Status error);

  const StandInOptions options_;
  std::atomic<int> allocations_left_ = 0, kernels_left_ = 0;
  std::atomic<int64_t> graph_launches_ = 0;
  std::atomic<bool> forbids_taking_ = false;
  BlockTurns turns_{/*seed=*/1};
  std::deque<Gpu> gpus_;
  mutable std::mutex mutex_;
  std::vector<std::string> misuse_;
  std::vector<Allocation*> allocations_;
  // Kept after they are destroyed, so that a stale handle is recognized.
  std::deque<StandInEvent> events_;
  std::deque<StandInStream> streams_;
  std::vector<std::unique_ptr<StandInCapture>> captures_;  // Captures that have not ended.
  uint64_t captures_begun_ = 0;
  std::atomic<int> capturing_ = 0;  // The size of captures_. Orders nothing.
  std::deque<StandInGraph> graphs_;
};

}  // namespace shale::cuda_on_host
