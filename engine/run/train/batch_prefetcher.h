// BatchPrefetcher reads the batch of the next step while the current step runs.
//
//   idle  --Take(samples, next)-->  reading `next`  --the thread is done-->  read  --Take(next, ...)-->  reading ...
//
// It costs one thread and a second SampleBatch: 8 bytes for each token that the ranks of this process read in a step.
// Both are outside the memory plan and count in TrainerDevices::overhead_bytes, like the first SampleBatch. On a CPU
// backend the thread competes with the kernels while it copies tokens.
//
// SampleBatch holds the samples of one run of a program in host memory.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/files/data/batch_loader.h"
#include "engine/run/runtime/step_items.h"

namespace shale {

// Owns host memory for the samples of one run of a program, for some ranks: for every token 4 bytes of input and 4 of
// target, and what else the data has (DataDescription). Borrows the loader.
class SampleBatch {
 public:
  // Allocates memory for `ranks`, numbers of ranks of the loader, or for all its ranks if `ranks` is empty.
  SampleBatch(const BatchLoader& loader, int64_t micro_batches, std::vector<int> ranks = {});

  // Loads the samples of `step`, in the order of their positions, and returns the inputs of each rank's executor, in
  // the order of `ranks`. They point into this object and are valid until the next call.
  absl::StatusOr<std::vector<StepInputs>> Fill(const StepSamples& step);

 private:
  const BatchLoader& loader_;
  int64_t micro_batches_;
  std::vector<int> ranks_;
  std::vector<PulledSample> data_;  // In the order of ranks_: all samples of a rank, [K, B, ...].
};

// Owns a thread and two buffers: a step runs from one buffer while the thread fills the other. Used by one thread at a
// time. The destructor waits for a read that is under way.
class BatchPrefetcher {
 public:
  // Reads the samples into a buffer that the function owns, and returns the inputs of each rank. They point into the
  // buffer and are valid until the next call of the same function. It is called on different threads, but never twice
  // at the same time.
  using ReadBatch = std::function<absl::StatusOr<std::vector<StepInputs>>(const StepSamples&)>;

  // Creates a prefetcher that reads from `loader`, which is borrowed, for steps of `micro_batches` micro-batches and
  // for `ranks` (as in SampleBatch). Returns ResourceExhausted if the system refuses to start a thread.
  static absl::StatusOr<std::unique_ptr<BatchPrefetcher>> Create(const BatchLoader& loader, int64_t micro_batches,
                                                                 std::vector<int> ranks = {});
  // Creates a prefetcher that reads with the given functions, one for each buffer. At most one of them runs at a time.
  static absl::StatusOr<std::unique_ptr<BatchPrefetcher>> Create(ReadBatch first, ReadBatch second);

  ~BatchPrefetcher();
  BatchPrefetcher(const BatchPrefetcher&) = delete;

  // Returns the inputs of a step with `samples`, and begins to read `next`, the samples that the following step is
  // expected to take. Reads nothing ahead if next.count is 0. Waits if `samples` are still being read. Reads them on
  // the calling thread if the previous call did not name them as `next`.
  //
  // The inputs are valid and unchanged until the next call. REQUIRES: the step that the previous call's inputs belong
  // to has ended, because the thread may now overwrite them. If `samples` could not be read, returns the error, even if
  // it occurred ahead of this call; a later call tries again. An error in reading `next` is returned by the call that
  // asks for these samples. Returns ResourceExhausted if memory cannot be allocated.
  absl::StatusOr<std::vector<StepInputs>> Take(const StepSamples& samples, const StepSamples& next);
  // Returns when nothing is being read; nothing will be until the next Take.
  void WaitForRead();

 private:
  enum class State { kIdle, kReading, kRead };

  BatchPrefetcher(ReadBatch first, ReadBatch second);
  absl::StatusOr<std::vector<StepInputs>> Read(int buffer, const StepSamples& samples) const;
  void Loop();

  const std::array<ReadBatch, 2> buffers_;
  std::mutex mutex_;
  std::condition_variable wake_, finished_;
  State state_ = State::kIdle;  // mutex_ guards this and all members below, except thread_.
  bool stop_ = false;
  int back_ = 0;  // The buffer that no step runs from. The thread uses it in state kReading, Take in the other states.
  StepSamples samples_;                             // The samples of the thread's current or last read.
  absl::StatusOr<std::vector<StepInputs>> result_;  // The result of that read, in state kRead.
  std::thread thread_;
};

}  // namespace shale
