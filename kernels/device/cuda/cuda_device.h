// CudaDevice: one GPU.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/device/cuda/cuda_clock.h"
#include "kernels/device/cuda/cuda_stream.h"
#include "kernels/device/cuda/runtime.h"
#include "kernels/device/device.h"

namespace shale {

// Allocates memory of the current device in place of cudaMalloc. Addresses are multiples of 4096. `free` is called with
// the result of `allocate` when all work of the device has ended. Both functions must be thread-safe.
struct CudaMemorySource {
  std::function<absl::StatusOr<void*>(int64_t size_bytes)> allocate;
  std::function<absl::Status(void* memory)> free;
};

struct CudaDeviceOptions {
  int ordinal = 0;           // As CUDA numbers the visible GPUs.
  bool synchronous = false;  // Streams wait after every piece of work, so that an error names its call. Slow.
  bool marks = false;        // Streams keep marks (Stream::Mark), if the driver can write them.
  CudaMemorySource memory;   // For arenas; empty: cudaMalloc.
};

// The ranks of a process may share one CudaDevice: a stream of one rank may wait for an event of another, once the
// other rank's thread has recorded it.
class CudaDevice : public Device {
 public:
  // Borrows `runtime`, which must outlive the device. Returns an error that says what is missing if there is no such
  // GPU.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Create(CudaRuntime& runtime, const CudaDeviceOptions& options);

  // Makes one allocation on the GPU. Destroying the arena frees it and waits for all work of the GPU.
  absl::StatusOr<std::unique_ptr<Arena>> Allocate(int64_t size_bytes) override;
  // Allocates pinned host memory. A copy from or to other host memory would wait for its stream.
  absl::StatusOr<std::unique_ptr<Arena>> AllocatePinned(int64_t size_bytes) override;
  // Returns a CudaStream. Streams named "gather" and "reduce" get the highest priority, because a collective that
  // starts late keeps its peers waiting.
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream(absl::string_view name) override;
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override;
  // Makes the GPU the calling thread's current one.
  absl::StatusOr<DeviceMemory> Memory() const override;
  bool CanCapture() const override { return !options_.synchronous; }

  // Returns why streams keep no marks, although the options ask for them. Empty if they do, or if they need not.
  const std::string& why_no_marks() const { return why_no_marks_; }
  // Returns the properties of the GPU as they were at Create.
  const CudaDeviceProperties& properties() const { return properties_; }
  int ordinal() const { return options_.ordinal; }

 private:
  CudaDevice(CudaRuntime& runtime, const CudaDeviceOptions& options) : runtime_(runtime), options_(options) {}
  // Writes a mark, to find out whether the driver can.
  absl::Status TryMark();

  CudaRuntime& runtime_;
  const CudaDeviceOptions options_;
  CudaDeviceProperties properties_;
  std::unique_ptr<CudaClock> clock_;
  std::string why_no_marks_;
};

}  // namespace shale
