// CudaDevice: one GPU.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/device/cuda/cuda_clock.h"
#include "kernels/device/cuda/cuda_stream.h"
#include "kernels/device/cuda/runtime.h"
#include "kernels/device/device.h"

namespace shale {

// Where memory of the current device comes from, when not from cudaMalloc; at multiples of 4096. `free` gets what
// `allocate` gave, when all work of the device has ended. Thread-safe.
struct CudaMemorySource {
  std::function<absl::StatusOr<void*>(int64_t size_bytes)> allocate;
  std::function<absl::Status(void* memory)> free;
};

struct CudaDeviceOptions {
  int ordinal = 0;           // As CUDA counts the visible ones.
  bool synchronous = false;  // Streams wait after everything that is enqueued: an error names its call. Slow.
  bool marks = false;        // Streams can say how far they came (Stream::Mark).
  CudaMemorySource memory;   // Of arenas; empty: cudaMalloc.
};

// May be shared by the ranks of a process: a stream of one may wait for an event of another, once that one's thread has
// recorded it.
class CudaDevice : public Device {
 public:
  // Borrows `runtime`, which must outlive the device. Fails where there is no such GPU, and says what is missing.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Create(CudaRuntime& runtime, const CudaDeviceOptions& options);

  // One allocation of CUDA's, given back when the arena is destroyed, which waits for all work of the GPU.
  absl::StatusOr<std::unique_ptr<Arena>> Allocate(int64_t size_bytes) override;
  // Pinned host memory, as copies want it that are not to wait for their stream. Otherwise like an arena.
  absl::StatusOr<std::unique_ptr<Arena>> AllocatePinned(int64_t size_bytes) override;
  // A CudaStream. Those named gather and reduce have the highest priority: a collective that starts late keeps the
  // peers waiting.
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream(absl::string_view name) override;
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override;
  bool CanCapture() const override { return !options_.synchronous; }

  // As of Create.
  const CudaDeviceProperties& properties() const { return properties_; }
  int ordinal() const { return options_.ordinal; }

 private:
  CudaDevice(CudaRuntime& runtime, const CudaDeviceOptions& options) : runtime_(runtime), options_(options) {}

  CudaRuntime& runtime_;
  const CudaDeviceOptions options_;
  CudaDeviceProperties properties_;
  std::unique_ptr<CudaClock> clock_;
};

}  // namespace shale
