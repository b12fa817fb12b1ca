// Reads the batch of the next step while the current step runs.
//
//   idle  --Take(samples, next)-->  reading `next`  --the thread is done-->  read  --Take(next, ...)-->  reading ...
//
// What it costs: one thread, and a second HostBatch, which is 8 bytes per token of the global batch. Neither is part of
// the memory plan: they are in Trainer::overhead_bytes, like the first HostBatch. On a CPU backend the thread competes
// with the kernels for as long as it copies tokens.
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
#include "engine/data/batch_loader.h"
#include "engine/runtime/host_items.h"

namespace shale {

// Owns a thread and two buffers: a step runs from one while the thread fills the other. Used by one thread at a time.
// The destructor waits for a read that is under way.
class BatchPrefetcher {
 public:
  // Reads the samples into a buffer of its own and returns the inputs of each rank, which point into that buffer and
  // are valid until the next call. It may be called on any thread, but never twice at the same time.
  using ReadBatch = std::function<absl::StatusOr<std::vector<StepInputs>>(const StepSamples&)>;

  // Reads from `loader`, which is borrowed, for steps of so many micro-batches, for some ranks (see HostBatch). Returns
  // ResourceExhausted if the system refuses to start a thread.
  static absl::StatusOr<std::unique_ptr<BatchPrefetcher>> Create(const BatchLoader& loader, int64_t micro_batches,
                                                                 std::vector<int> ranks = {});
  // Reads with the given functions, one for each buffer. They may be called concurrently with each other.
  static absl::StatusOr<std::unique_ptr<BatchPrefetcher>> Create(ReadBatch first, ReadBatch second);

  ~BatchPrefetcher();
  BatchPrefetcher(const BatchPrefetcher&) = delete;

  // Returns the inputs of a step with `samples`, and begins to read those of the step that is expected to follow,
  // `next`; with a count of 0 it reads nothing. Waits if the samples are still being read. Reads them itself if others
  // were expected, or none.
  //
  // The inputs are valid and unchanged until the next call: REQUIRES that the step before has ended. Returns an error
  // of reading `samples`, whenever it happened; a later call reads them anew. Errors of reading `next` are left to the
  // call that asks for them. ResourceExhausted if memory is missing.
  absl::StatusOr<std::vector<StepInputs>> Take(const StepSamples& samples, const StepSamples& next);

 private:
  enum class State { kIdle, kReading, kRead };

  BatchPrefetcher(ReadBatch first, ReadBatch second);
  absl::StatusOr<std::vector<StepInputs>> Read(int buffer, const StepSamples& samples) const;
  void Loop();

  const std::array<ReadBatch, 2> buffers_;
  std::mutex mutex_;
  std::condition_variable wake_, finished_;
  State state_ = State::kIdle;  // mutex_ guards this and all members below.
  bool stop_ = false;
  int back_ = 0;         // The buffer that no step runs from. The thread uses it in state kReading, else Take does.
  StepSamples samples_;  // What is being read, or was.
  absl::StatusOr<std::vector<StepInputs>> result_;  // Of the read, in state kRead.
  std::thread thread_;
};

}  // namespace shale
