// TurnTimer: compares work that a GPU does, such as one matmul by several algorithms, while the GPU is as hot as in a
// training step. A GPU at its power limit runs slower, and not each kind of work by as much.
//
// The contestants take turns in rounds. In a round each is launched so often, back to back, that one launch hardly
// counts, the next one follows without a pause, and nothing else runs in between.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/device/cuda/cuda_device.h"
#include "kernels/device/cuda/cuda_event.h"
#include "kernels/device/cuda/handles.h"

namespace shale {

// One of those that take turns.
struct Contestant {
  std::function<absl::Status()> prepare;                   // Called before the launches of a round. May be empty.
  std::function<absl::Status(cuda::StreamHandle)> launch;  // Enqueues the work once.
};

// Only the launching thread of the device may use it. Borrows the runtime and the device, which must outlive it.
class TurnTimer {
 public:
  // Times up to `most` contestants together.
  static absl::StatusOr<TurnTimer> Create(CudaRuntime& runtime, CudaDevice& device, int most);

  // Runs one round of `launches` each and returns the seconds of one launch of each contestant. If one of them returns
  // an error, stores it in `refusal`, returns what does not matter, and can be used again.
  absl::StatusOr<std::vector<double>> Round(absl::Span<const Contestant> contestants, int launches,
                                            absl::Status& refusal);

  // Returns the median of each contestant's rounds, and the error of a contestant if it has one. Each round begins with
  // another contestant, so that none always follows the same one.
  absl::StatusOr<std::vector<double>> Medians(const std::vector<Contestant>& contestants, int rounds, int launches);

  Stream& stream() { return *stream_; }

 private:
  explicit TurnTimer(CudaRuntime& runtime) : runtime_(&runtime) {}

  CudaRuntime* runtime_;
  std::unique_ptr<Stream> stream_;
  std::vector<CudaEventHandle> events_;  // Before the launches of each contestant, and after those of the last.
};

}  // namespace shale
