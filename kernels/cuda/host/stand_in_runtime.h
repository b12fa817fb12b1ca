// StandInRuntime: the CUDA runtime where there is no GPU. Streams are threads that run copies and our kernels (compiled
// as C++) in their order, device memory cannot be touched by host code, and what a GPU would answer with silent
// corruption or an unexplained stall is an error.
//
// Misuse, reported by the call (InvalidArgument) and kept in misuse(), for those who drop its Status:
// - a copy, memset or word that does not lie wholly in one allocation; host memory that is not pinned, unless allowed;
// - memory freed twice, not by its address, or while enqueued work still uses it (CUDA would wait for the device);
// - a stream or event that was destroyed; the default stream; a kernel for another device than the current one;
// - a time asked of an event that cannot tell one or has not been reached;
// - a capture that is not ended by the thread and on the stream that began it, whose streams are not joined, or that
//   meets an event of elsewhere; a call that a thread must not make while it captures; a captured event that is waited
//   for outside; a graph that was destroyed, and the end of memory that a graph uses.
// A missing wait between streams, or in a graph, is a data race for ThreadSanitizer, as with CpuStream, of which
// streams are made.
//
// Failures to order: the n-th allocation, or the n-th kernel from now. A kernel fails late: its stream goes on being
// fed, some later call reports the error, and so does every one after it for that device; what was enqueued before
// does not run any more. A kernel in which the host runner finds fault (README.md) ends so too.
//
// The device's clock is not the host's: it started later, and runs a little faster.
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
#include "kernels/cuda/host/stand_in_memory.h"
#include "kernels/device/cuda/runtime.h"

namespace shale::cuda_on_host {

struct StandInCapture;
struct StandInEvent;
struct StandInGraph;
struct StandInStream;
struct StandInWork;

struct StandInOptions {
  int devices = 1;
  int compute_major = 9;
  int64_t memory_bytes = int64_t{1} << 30;  // Of each device.
  bool allow_pageable = false;              // Copies from and to host memory that is not pinned.
};

class StandInRuntime final : public CudaRuntime {
 public:
  explicit StandInRuntime(const StandInOptions& options = {});
  // Waits for all work, frees everything.
  ~StandInRuntime() override;

  // Lets the n-th Malloc or MallocHost from now find no memory; the n-th kernel from now go wrong.
  void FailAllocation(int nth) { allocations_left_ = nth; }
  void FailKernel(int nth) { kernels_left_ = nth; }

  std::vector<std::string> misuse() const;
  // An error that names what has not been freed or destroyed.
  absl::Status CheckAllReleased() const;
  CudaStreamPriority PriorityOf(cuda::StreamHandle stream) const;
  // Launches so far.
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
  absl::StatusOr<cuda::GraphHandle> EndCapture(cuda::StreamHandle stream) override;
  absl::StatusOr<cuda::NodeHandle> LastCaptured(cuda::StreamHandle stream) override;
  absl::Status SetGraphCopy(cuda::GraphHandle graph, cuda::NodeHandle copy, void* to, const void* from,
                            int64_t size_bytes) override;
  absl::Status LaunchGraph(cuda::GraphHandle graph, cuda::StreamHandle stream) override;
  absl::Status DestroyGraph(cuda::GraphHandle graph) override;
  absl::Status TakeLastError() override;

 private:
  // One GPU. The error comes once and stays.
  struct Gpu {
    std::atomic<bool> dead = false;
    absl::Status error;           // Written before dead, with mutex_ held; read with it.
    int64_t allocated_bytes = 0;  // With mutex_ held.
  };
  // Bytes that a copy may touch, or why not.
  struct Bytes {
    std::byte* view = nullptr;
    Allocation* allocation = nullptr;  // Null: pageable.
  };

  int current() const;
  absl::Status ErrorOf(const char* call, int ordinal);
  absl::Status Misuse(const char* call, absl::string_view what);
  absl::Status CheckStream(const char* call, cuda::StreamHandle stream);
  absl::Status CheckEvent(const char* call, cuda::EventHandle event);
  absl::StatusOr<Bytes> BytesAt(const char* call, const void* address, int64_t size_bytes);
  absl::StatusOr<void*> Allocate(const char* call, MemoryKind kind, int64_t size_bytes);
  absl::Status Deallocate(const char* call, MemoryKind kind, void* memory);
  // For a call that a thread must not make while it captures.
  absl::Status CheckNoCapture(const char* call);
  // For a call that waits for an event on the host, or looks at it.
  absl::Status CheckOutside(const char* call, cuda::EventHandle event);
  absl::Status OpenStream(StandInStream& stream, int ordinal, const std::string& name);
  // Appends to a stream, or to its capture; an error of what runs ends the device.
  absl::Status Submit(StandInStream& stream, StandInWork work);
  absl::Status Run(StandInStream& stream, const StandInWork& work);
  absl::Status SubmitKernel(StandInStream& stream, std::function<absl::Status()> kernel);
  absl::StatusOr<StandInWork> CopyWork(const char* call, void* to, const void* from, int64_t size_bytes);
  // Records on a stream; `event` may be null. Returns the stream's count.
  absl::StatusOr<uint64_t> Reach(StandInStream& stream, StandInEvent* event);
  absl::Status Await(StandInStream& stream, StandInStream& awaited, uint64_t record);
  StandInCapture* CaptureOf(uint64_t number);
  absl::Status CaptureWait(StandInStream& stream, const StandInEvent& event);
  absl::Status CheckGraph(const char* call, cuda::GraphHandle graph);
  // Out of those that have not ended.
  std::unique_ptr<StandInCapture> Take(const StandInCapture& capture);
  void Kill(Gpu& gpu, absl::Status error);

  const StandInOptions options_;
  std::atomic<int> allocations_left_ = 0, kernels_left_ = 0;
  std::atomic<int64_t> graph_launches_ = 0;
  std::deque<Gpu> gpus_;
  mutable std::mutex mutex_;
  std::vector<std::string> misuse_;
  std::vector<Allocation*> allocations_;
  // Kept when destroyed, so that a stale handle is known as one.
  std::deque<StandInEvent> events_;
  std::deque<StandInStream> streams_;
  std::vector<std::unique_ptr<StandInCapture>> captures_;  // That have not ended.
  uint64_t captures_begun_ = 0;
  std::atomic<int> capturing_ = 0;  // Of captures_. Orders nothing.
  std::deque<StandInGraph> graphs_;
};

}  // namespace shale::cuda_on_host
