// The device's clock, read on the host's.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device/cuda/cuda_event.h"
#include "kernels/device/cuda/runtime.h"

namespace shale {

// CUDA only tells how far two events are apart. So an event is recorded on an empty stream of its own while the host
// looks at its clock before and after, and others are measured from there. All streams of a device share these
// references, so that their times compare. The clocks drift apart, and a distance comes as a float: a reference serves
// for a second. Thread-safe.
class CudaClock {
 public:
  struct Reference {
    CudaEventHandle event;
    int64_t host_ns = 0;  // The host's steady clock then.
  };

  // Borrows `runtime`. The device is the calling thread's current one.
  static absl::StatusOr<std::unique_ptr<CudaClock>> Create(CudaRuntime& runtime);
  ~CudaClock();

  // One that everything recorded from now on comes after. May wait for the empty stream, once a second. The current
  // device must be the clock's.
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
