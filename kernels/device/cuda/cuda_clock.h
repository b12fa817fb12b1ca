// CudaClock: converts times of a GPU to the host's steady clock.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device/cuda/cuda_event.h"
#include "kernels/device/cuda/runtime.h"

namespace shale {

// CUDA tells only the time between two events. Therefore the clock records a reference event on an empty stream of its
// own, reads the host's clock before and after, and measures other events from there. All streams of a device share
// these references, so that their times can be compared. A reference is used for one second only, because the clocks
// drift apart and CUDA returns the time between events as a float. Thread-safe.
class CudaClock {
 public:
  struct Reference {
    CudaEventHandle event;
    int64_t host_ns = 0;  // The host's steady clock at the event.
  };

  // Creates the clock of the calling thread's current device. Borrows `runtime`.
  static absl::StatusOr<std::unique_ptr<CudaClock>> Create(CudaRuntime& runtime);
  ~CudaClock();

  // Returns a reference that precedes everything recorded from now on. Makes a new one at most once a second, and then
  // waits for the empty stream. REQUIRES: the current device is the clock's.
  absl::StatusOr<std::shared_ptr<const Reference>> Now();

 private:
  explicit CudaClock(CudaRuntime& runtime) : runtime_(runtime) {}
  absl::StatusOr<std::shared_ptr<const Reference>> Measure();

  CudaRuntime& runtime_;
  cuda::StreamHandle stream_ = nullptr;
  std::mutex mutex_;
  std::shared_ptr<const Reference> latest_;
};

}  // namespace shale
